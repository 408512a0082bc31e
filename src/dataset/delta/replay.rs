//! From the actions of a log to the content of a version: the newest action counts.

use std::collections::HashSet;

use super::action::{Actions, Add, Metadata, Protocol, Vector};
use super::path::decoded;

/// Commits, the newest first, and then a checkpoint, told one by one.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// Files that a later commit told of, by path and vector.
    told: HashSet<(String, Option<String>)>,
    /// The files of the version.
    pub(super) live: Vec<Add>,
    pub(super) protocol: Option<Protocol>,
    pub(super) metadata: Option<Metadata>,
}

impl Replay {
    /// Takes the next older commit.
    pub(super) fn commit(&mut self, actions: Actions) {
        self.about(actions.protocol, actions.metadata);
        // A commit that replaces the vector of a file removes the file with the old one and adds it with the new one.
        for add in actions.adds {
            if self.told.insert(key(&add.path, add.deletion_vector.as_deref())) {
                self.live.push(add);
            }
        }
        self.told.extend(actions.removes.iter().map(|gone| key(&gone.path, gone.deletion_vector.as_ref())));
    }

    /// Takes a part of the checkpoint, which has nothing twice.
    pub(super) fn checkpoint(&mut self, actions: Actions) {
        self.about(actions.protocol, actions.metadata);
        let mut adds = actions.adds;
        if !self.told.is_empty() {
            adds.retain(|add| !self.told.contains(&key(&add.path, add.deletion_vector.as_deref())));
        }
        // There may be a million: they are not held twice.
        if self.live.is_empty() { self.live = adds } else { self.live.extend(adds) }
    }

    /// Sets protocol and metadata where they are not known yet.
    pub(super) fn about(&mut self, protocol: Option<Protocol>, metadata: Option<Metadata>) {
        self.protocol = self.protocol.take().or(protocol);
        self.metadata = self.metadata.take().or(metadata);
    }
}

/// What a file is told by, with its vector. Writers may name one file differently: some leave out the scheme of this machine's files, as in
/// `file:/x` and `/x`, and some encode what others do not, as in `a%2Bb` and `a+b`.
fn key(path: &str, vector: Option<&Vector>) -> (String, Option<String>) {
    let path = match path.strip_prefix("file:") {
        Some(rest) => {
            let slashes = rest.len() - rest.trim_start_matches('/').len();
            rest.get(slashes.saturating_sub(1)..).unwrap_or(rest)
        }
        None => path,
    };
    (decoded(path).unwrap_or_else(|| path.to_owned()), vector.map(Vector::id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(commits: &[&str], checkpoint: &str) -> Vec<String> {
        let parse = |lines: &str| {
            let action = |line: &str| {
                let (what, rest) = line.split_at(1);
                let (path, vector) = rest.split_once('#').map_or((rest, None), |(path, id)| (path, Some(id)));
                let vector = vector.map(|id| {
                    format!(r#","deletionVector":{{"storageType":"u","pathOrInlineDv":"{id}","sizeInBytes":1,"cardinality":1}}"#)
                });
                let (name, vector) = (if what == "+" { "add" } else { "remove" }, vector.unwrap_or_default());
                format!(r#"{{"{name}":{{"path":"{path}"{vector}}}}}"#)
            };
            let lines: Vec<String> = lines.split_whitespace().map(action).collect();
            Actions::parse(lines.join("\n").as_bytes()).unwrap()
        };
        let mut replay = Replay::default();
        commits.iter().rev().for_each(|commit| replay.commit(parse(commit)));
        replay.checkpoint(parse(checkpoint));
        let id = |add: &Add| {
            let vector = add.deletion_vector.as_ref().map(|vector| format!("#{}", vector.path_or_inline_dv));
            format!("{}{}", add.path, vector.unwrap_or_default())
        };
        let mut live: Vec<String> = replay.live.iter().map(id).collect();
        live.sort();
        live
    }

    #[test]
    fn the_newest_action_on_a_file_counts() {
        assert_eq!(replay(&["+a +b", "-a +c", "+a"], ""), ["a", "b", "c"], "removed and added again");
        assert_eq!(replay(&["-a", "+d"], "+a +b"), ["b", "d"]);
        assert_eq!(replay(&["-a +a#1", "-a#1 +a#2"], "+a +b"), ["a#2", "b"], "another vector is another file");
        assert_eq!(replay(&["+a -a#0"], "+a#0"), ["a"], "its rows are restored");
        assert_eq!(replay(&["+/x/a", "-file:/x/a"], ""), Vec::<String>::new());
        assert_eq!(replay(&["+file:///x/a", "-/x/a"], ""), Vec::<String>::new());
        assert_eq!(replay(&["+a+b", "-a%2Bb"], "+a%2bb"), Vec::<String>::new());
        assert_eq!(replay(&["+a%2Bb", "-a+b"], "+a%252Bb"), ["a%252Bb"]);
    }
}
