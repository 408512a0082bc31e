//! The loader's options as flags and environment variables, made from the table of options.
//!
//! Flags override the JSON file of `--options`, and both are read as one [`LoaderOptions`], so that a name, a type and a
//! default exist once, in the library.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, Parser};
use serde_json::{Map, Value, json};

use crate::pipeline::option_table::{About, OPTIONS, OptionEntry, alternative, is_of_columns, option};
use crate::pipeline::rank::batch_tasks;
use crate::pipeline::{Kind, LoaderOptions, paths_at_home};
use crate::store::{at_home, path_at_home};
use crate::{Error, Result};

/// The dataset and the access to it.
#[derive(Debug, Clone, Parser)]
#[command(next_help_heading = "Dataset")]
pub(crate) struct DatasetArgs {
    /// Files, directories, globs or URLs of one dataset; of a mixture, one entry per dataset
    #[arg(value_name = "URL", required_unless_present = "options")]
    urls: Vec<String>,
    #[command(flatten)]
    flags: Flags<DATASET>,
    /// JSON file of options, by the names of the flags and of Python; flags and environment override it
    #[arg(long, env = "BOWSTRING_OPTIONS", value_name = "FILE", hide_env_values = true)]
    options: Option<PathBuf>,
}

/// The dataset alone: its location, and the way to open it.
#[derive(Debug, Clone, Parser)]
#[command(next_help_heading = "Dataset")]
pub(crate) struct PlaceArgs {
    /// Files, directories, globs or URLs of one dataset
    #[arg(value_name = "URL", required_unless_present = "options")]
    urls: Vec<String>,
    #[command(flatten)]
    flags: Flags<PLACE>,
    /// JSON file of options, by the names of the flags and of Python; flags and environment override it
    #[arg(long, env = "BOWSTRING_OPTIONS", value_name = "FILE", hide_env_values = true)]
    options: Option<PathBuf>,
}

/// A directory or a file of a store, and access to it.
#[cfg(all(feature = "fuse", target_os = "linux"))]
#[derive(Debug, Clone, Parser)]
#[command(next_help_heading = "Store")]
pub(crate) struct StoreArgs {
    /// Its address: s3://, gs://, az://, https://, hdfs://, hf://, bow:// with mounts, or a path
    #[arg(value_name = "URL")]
    url: String,
    #[command(flatten)]
    flags: Flags<STORE>,
}

/// A server, and access to it.
#[cfg(feature = "flight")]
#[derive(Debug, Clone, Parser)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerArgs {
    /// Address of a server, grpc://HOST:PORT, or of its admin port, http://HOST:PORT
    #[arg(value_name = "ADDRESS")]
    address: String,
    #[command(flatten)]
    flags: Flags<SERVER>,
}

/// The order, the share of this rank, and its resources.
#[derive(Debug, Clone, Parser)]
#[command(next_help_heading = "Loader")]
pub(crate) struct LoaderArgs {
    #[command(flatten)]
    dataset: DatasetArgs,
    #[command(flatten)]
    flags: Flags<LOADING>,
}

/// Parts of the table: options of the dataset and its columns, those of loading, and those that apply without a selection of rows.
const DATASET: u8 = 0;
const LOADING: u8 = 1;
const PLACE: u8 = 2;
#[cfg(feature = "flight")]
const SERVER: u8 = 3;
#[cfg(all(feature = "fuse", target_os = "linux"))]
const STORE: u8 = 4;

/// The flags of one part of the table.
#[derive(Debug, Clone, Default)]
struct Flags<const PART: u8> {
    values: Map<String, Value>,
    /// Names of those that variables gave.
    of_variables: BTreeSet<&'static str>,
}

impl<const PART: u8> Flags<PART> {
    /// The values, without those of variables whose alternative a flag gave.
    fn laid(&self) -> Map<String, Value> {
        let is_typed = |name: &str| self.values.contains_key(name) && !self.of_variables.contains(name);
        let mut values = self.values.clone();
        values.retain(|name, _| is_typed(name) || !alternative(name).is_some_and(is_typed));
        values
    }

    fn entries() -> impl Iterator<Item = &'static OptionEntry> {
        let is_in = |entry: &&OptionEntry| match PART {
            PLACE => matches!(entry.name, "storage_options" | "mounts" | "limits" | "partitioning"),
            #[cfg(feature = "flight")]
            SERVER => matches!(entry.name, "storage_options" | "timeout"),
            #[cfg(all(feature = "fuse", target_os = "linux"))]
            STORE => entry.name.starts_with("cache") || matches!(entry.name, "storage_options" | "mounts" | "timeout"),
            _ => (entry.about == About::Loading) == (PART == LOADING),
        };
        OPTIONS.iter().filter(move |entry| is_in(entry) && entry.flag().is_some())
    }
}

/// Makes the flag of an option. Its texts live as long as the program, as clap requires.
fn flag(entry: &'static OptionEntry, heading: &'static str) -> Option<Arg> {
    let (name, variable) = (&*entry.flag()?.leak(), &*entry.variable()?.leak());
    let mut help = entry.help();
    if let Some(first) = help.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let kind = entry.kind;
    let arg = Arg::new(entry.name)
        .long(name)
        .env(variable)
        .hide_env_values(true)
        .help(help)
        .help_heading(heading)
        .value_name(value_name(entry))
        .action(if kind.is_list() { ArgAction::Append } else { ArgAction::Set });
    Some(match kind {
        Kind::Choice(words) => arg.value_parser(PossibleValuesParser::new(words).map(Value::from)),
        // Parsed after clap, which quotes what a parser refuses: it may be a secret.
        Kind::Pairs => arg.value_parser(StringValueParser::new().map(Value::from)),
        // A flag that turns something on needs no value.
        Kind::Switch if entry.default == "false" => arg
            .value_parser(move |text: &str| kind.parse(text))
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
        _ => arg.value_parser(move |text: &str| kind.parse(text)),
    })
}

fn value_name(entry: &OptionEntry) -> &'static str {
    match entry.kind {
        Kind::Whole { .. } if entry.sentence.starts_with("rows") => "ROWS",
        Kind::Whole { .. } => "N",
        Kind::Seconds(_) => "SECONDS",
        Kind::Switch => "BOOL",
        Kind::Choice(_) => "WORD",
        Kind::Text => "TEXT",
        Kind::Bytes => "BYTES",
        Kind::Names => "NAMES",
        Kind::Numbers => "NUMBERS",
        Kind::Pairs => "KEY=VALUE",
        Kind::Filter => "EXPR",
        Kind::Structure => "JSON",
    }
}

impl<const PART: u8> Args for Flags<PART> {
    fn augment_args(command: Command) -> Command {
        let heading = match PART {
            LOADING => "Loader",
            #[cfg(feature = "flight")]
            SERVER => "Server",
            #[cfg(all(feature = "fuse", target_os = "linux"))]
            STORE => "Store",
            _ => "Dataset",
        };
        command.args(Self::entries().filter_map(|entry| flag(entry, heading)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const PART: u8> FromArgMatches for Flags<PART> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for entry in Self::entries() {
            let Some(values) = matches.get_many::<Value>(entry.name) else { continue };
            let is_of_variable = matches.value_source(entry.name) == Some(ValueSource::EnvVariable);
            let mut read = Vec::new();
            for value in values {
                read.push(match value.as_str() {
                    Some(text) if entry.kind == Kind::Pairs => entry.kind.parse(text).map_err(|problem| {
                        let flag = || entry.flag().map(|flag| format!("--{flag}"));
                        let given = if is_of_variable { entry.variable() } else { flag() };
                        let problem = format!("{}: {problem}", given.as_deref().unwrap_or(entry.name));
                        clap::Error::raw(ErrorKind::ValueValidation, problem)
                    })?,
                    _ => value.clone(),
                });
            }
            if let Some(value) = read.into_iter().reduce(joined) {
                self.values.insert(entry.name.to_owned(), value);
                if is_of_variable {
                    self.of_variables.insert(entry.name);
                }
            }
        }
        Ok(())
    }
}

/// Joins the values of a repeated flag: lists are concatenated. Any other flag may be given once.
fn joined(first: Value, second: Value) -> Value {
    match (first, second) {
        (Value::Array(first), Value::Array(second)) => Value::Array([first, second].concat()),
        (Value::Object(first), Value::Object(second)) => Value::Object(first.into_iter().chain(second).collect()),
        (_, second) => second,
    }
}

impl DatasetArgs {
    /// Returns the options that select dataset and columns.
    pub(crate) fn options(&self) -> Result<LoaderOptions> {
        LoaderOptions::from_document(self.document()?)
    }

    /// Names of those of `options` that flags or the file gave, and no variable.
    #[cfg(feature = "flight")]
    pub(crate) fn typed(&self, options: &LoaderOptions) -> impl Iterator<Item = &'static str> {
        options.given.iter().copied().filter(|name| *name != "urls" && !self.flags.of_variables.contains(name))
    }

    fn document(&self) -> Result<Map<String, Value>> {
        document(self.options.as_deref(), &self.urls, &self.flags)
    }
}

impl PlaceArgs {
    /// Returns the options for the location of the dataset; a file may have others.
    pub(crate) fn options(&self) -> Result<LoaderOptions> {
        LoaderOptions::from_document(document(self.options.as_deref(), &self.urls, &self.flags)?)
    }
}

#[cfg(feature = "flight")]
impl ServerArgs {
    /// Returns the options with the server as their only address.
    pub(crate) fn options(&self) -> Result<LoaderOptions> {
        LoaderOptions::from_document(document(None, std::slice::from_ref(&self.address), &self.flags)?)
    }
}

#[cfg(all(feature = "fuse", target_os = "linux"))]
impl StoreArgs {
    /// Returns the address, and the options of its files.
    pub(crate) fn options(&self) -> Result<(String, crate::store::FileOptions)> {
        let options = LoaderOptions::from_document(document(None, std::slice::from_ref(&self.url), &self.flags)?)?;
        Ok((at_home(&self.url), options.file_options()?))
    }
}

/// Merges the file of options with the flags.
fn document<const PART: u8>(file: Option<&Path>, urls: &[String], flags: &Flags<PART>) -> Result<Map<String, Value>> {
    let mut document = match file {
        Some(path) => read(&path_at_home(path))?,
        None => Map::new(),
    };
    // clap cannot tell an empty list from none.
    if !urls.is_empty() {
        let urls: Vec<_> = urls.iter().map(|url| at_home(url)).collect();
        document.insert("urls".to_owned(), json!(urls));
    }
    let mut values = flags.laid();
    let urls = document.get("urls").and_then(Value::as_array).into_iter().flatten();
    if is_served(urls.filter_map(Value::as_str)) {
        // Such variables are for the other loaders of a job.
        let left = |name: &str| {
            flags.of_variables.contains(name) && option(name).is_some_and(OptionEntry::is_left_to_a_server)
        };
        values.retain(|name, _| !left(name));
    }
    lay(&mut document, &values);
    paths_at_home(&mut document);
    Ok(document)
}

/// Returns true if one of `urls` is a server's.
pub(crate) fn is_served<'a>(mut urls: impl Iterator<Item = &'a str>) -> bool {
    #[cfg(feature = "flight")]
    let is_one = crate::flight::client::Address::is_one;
    #[cfg(not(feature = "flight"))]
    let is_one = |_: &str| false;
    urls.any(is_one)
}

impl LoaderArgs {
    /// Returns all options.
    pub(crate) fn options(&self) -> Result<LoaderOptions> {
        LoaderOptions::from_document(self.document()?)
    }

    /// Returns all options as the document that [`LoaderArgs::options`] reads.
    pub(crate) fn document(&self) -> Result<Map<String, Value>> {
        let mut document = self.dataset.document()?;
        lay(&mut document, &self.flags.laid());
        Ok(document)
    }

    /// Returns all options, for results that are the same on every rank: a number of ranks suffices.
    pub(crate) fn options_of_any_rank(&self) -> Result<LoaderOptions> {
        let mut options = self.options()?;
        if options.world_size.is_some() {
            options.rank.get_or_insert(0);
        } else if let (None, Some(tasks)) = (options.rank, batch_tasks()) {
            (options.rank, options.world_size) = (Some(0), Some(tasks));
        }
        Ok(options)
    }
}

/// Applies flags to a document, in which options of columns may be under `columns` or beside the others.
fn lay(document: &mut Map<String, Value>, flags: &Map<String, Value>) {
    document.retain(|name, _| !alternative(name).is_some_and(|other| flags.contains_key(other)));
    for (name, value) in flags {
        if is_of_columns(name) {
            if name != "columns" {
                document.remove(name);
            }
            match document.get_mut("columns") {
                Some(Value::Object(columns)) => {
                    columns.insert(name.clone(), value.clone());
                }
                Some(names @ Value::Array(_)) if name != "columns" => {
                    *names = json!({"columns": names, name: value});
                }
                _ => {
                    document.insert("columns".to_owned(), json!({ name: value }));
                }
            }
        } else {
            document.insert(name.clone(), value.clone());
        }
    }
}

fn read(path: &Path) -> Result<Map<String, Value>> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::config("options", format!("{} cannot be read: {error}", path.display())))?;
    match serde_json::from_str(&text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Error::config("options", format!("{}: the options must be one JSON object", path.display()))),
        Err(error) => Err(Error::config("options", format!("{}: {error}", path.display()))),
    }
}

/// The options of stores in `given`, texts that clap has not parsed: it quotes what a parser refuses, which may be a secret.
///
/// # Errors
/// [`Error::Config`] for a text that has a part without its key.
pub(crate) fn storage_options(given: &[String]) -> Result<BTreeMap<String, String>> {
    let wrong = |problem| Error::config("storage_options", problem);
    let values: Vec<Value> = given.iter().map(|text| Kind::Pairs.parse(text).map_err(wrong)).collect::<Result<_>>()?;
    let all = values.into_iter().reduce(joined).unwrap_or_else(|| json!({}));
    serde_json::from_value(all).map_err(|error| wrong(error.to_string()))
}

#[cfg(feature = "convert")]
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

pub(crate) use crate::pipeline::bytes;

/// A switch of a server; `None` for an empty text, as of a variable that is set to nothing. The alias is for clap's derive alone, which would
/// read `Option<Option<bool>>` as a flag whose value may be left out.
#[cfg(feature = "flight")]
pub(crate) type MaybeSwitch = Option<bool>;

/// A switch of a server, in the words that switches of a loader have.
#[cfg(feature = "flight")]
pub(crate) fn switch(text: &str) -> Result<MaybeSwitch, String> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    Kind::Switch.parse(text).map(|value| Some(value == Value::Bool(true)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Index;

    #[test]
    fn flags_go_before_the_options_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, r#"{"urls": ["a"], "batch_size": 3, "seed": 7, "columns": {"columns": ["x"]}}"#).unwrap();
        let path = file.path().to_str().unwrap();
        let args = |more: &[&str]| LoaderArgs::try_parse_from([&["x", "--options", path], more].concat());
        let options = args(&["--batch-size", "5", "--tail=drop", "--shuffle=false", "--columns", "p,q"])
            .unwrap()
            .options()
            .unwrap();
        assert_eq!((options.batch_size, options.seed, options.shuffle), (Some(5), 7, false));
        assert_eq!(
            (options.urls, options.columns.columns),
            (vec!["a".to_owned()], vec!["p".to_owned(), "q".to_owned()])
        );
        assert_eq!(args(&["b", "--shuffle", "true"]).unwrap().options().unwrap().urls, ["b"]);
        assert!(args(&["--tail=keep"]).is_err());
        let options = args(&["--row-id", "--cast", r#"{"x": "float32"}"#]).unwrap().options().unwrap();
        assert_eq!((options.columns.columns, options.columns.row_id), (vec!["x".to_owned()], true));
        assert_eq!(options.columns.cast.len(), 1);
        std::fs::write(&file, r#"{"urls": ["a"], "batch": 3}"#).unwrap();
        let error = args(&[]).unwrap().options().unwrap_err().to_string();
        assert!(error.contains("unknown option `batch`"), "{error}");
    }

    #[test]
    fn one_size_of_a_batch_replaces_the_other_of_a_lower_layer() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, r#"{"urls": ["a"], "batch_size": 100}"#).unwrap();
        let parsed = |more: &[&str]| LoaderArgs::try_parse_from([&["x"], more].concat()).unwrap();
        let sizes = |args: &LoaderArgs| {
            let options = args.options().unwrap();
            (options.batch_size, options.global_batch_size)
        };
        let in_file = ["--options", file.path().to_str().unwrap()];
        assert_eq!(sizes(&parsed(&[&in_file[..], &["--global-batch-size=50"]].concat())), (None, Some(50)));
        assert_eq!(sizes(&parsed(&in_file)), (Some(100), None));
        // Contradictions within one layer are still told.
        assert_eq!(sizes(&parsed(&["a", "--batch-size=3", "--global-batch-size=50"])), (Some(3), Some(50)));
        let mut args = parsed(&["a", "--batch-size=100", "--global-batch-size=50"]);
        args.flags.of_variables.insert("batch_size");
        assert_eq!(sizes(&args), (None, Some(50)), "a flag goes before a variable");
    }

    #[test]
    fn a_tilde_after_a_flag_is_the_home() {
        let options = LoaderArgs::try_parse_from(["x", "u", "--cache=~/c", "--mounts=~/m", "--index=~/i"]);
        let options = options.unwrap().options().unwrap();
        let home = at_home("~");
        let none = LoaderArgs::try_parse_from(["x", "u", "--options=~/there is no such file"]).unwrap();
        let none = none.options().unwrap_err().to_string();
        assert!(none.contains(&format!("{home}/there is no such file")), "{none}");
        assert_eq!(options.cache, Some(format!("{home}/c")));
        assert_eq!(options.index, Index::At(format!("{home}/i")));
        let other =
            LoaderArgs::try_parse_from(["x", "u", "--cache=memory", "--index=auto"]).unwrap().options().unwrap();
        assert_eq!((other.cache.as_deref(), other.index), (Some("memory"), Index::Auto));
    }

    #[cfg(feature = "flight")]
    #[test]
    fn variables_of_the_owner_are_left_to_a_server() {
        let of = |url: &str| {
            let values =
                json!({"cache": "c", "partitioning": "hive", "seed": 3, "version": 1}).as_object().unwrap().clone();
            let of_variables = BTreeSet::from(["cache", "partitioning", "seed", "version"]);
            let flags = Flags::<DATASET> { values, of_variables };
            document(None, &[url.to_owned()], &flags).unwrap().keys().cloned().collect::<Vec<_>>()
        };
        assert_eq!(of("grpc://h/x"), ["seed", "urls", "version"], "a version says which rows");
        assert_eq!(of("x"), ["cache", "partitioning", "seed", "urls", "version"]);
        let typed = Flags::<DATASET> { values: Map::from_iter([("cache".to_owned(), json!("c"))]), ..Flags::default() };
        assert!(document(None, &["grpc://h/x".to_owned()], &typed).unwrap().contains_key("cache"));
    }

    #[test]
    fn what_is_given_twice_adds_up_where_it_is_a_list() {
        let args =
            ["x", "u", "--columns", "a,b", "--columns=c", "--storage-options", "k=v,l=w", "--storage-options=m=n"];
        let options = LoaderArgs::try_parse_from(args).unwrap().options().unwrap();
        assert_eq!((options.columns.columns.len(), options.storage_options.len()), (3, 3));
        assert!(LoaderArgs::try_parse_from(["x", "u", "--seed=1", "--seed=2"]).is_err());
        let error = LoaderArgs::try_parse_from(["x", "u", "--batch-size=-1"]).unwrap_err().to_string();
        assert!(error.contains("is not a whole number from 1 to"), "{error}");
    }

    #[test]
    fn options_of_stores_may_have_commas_and_are_never_quoted() {
        for flag in ["--storage-options", "--cache-peer-options"] {
            let given = |text: &str| LoaderArgs::try_parse_from(["x", "u", flag, text]);
            let options = given("token=sEc,ReT,region=x").unwrap().options().unwrap();
            let pairs = if flag == "--storage-options" { options.storage_options } else { options.cache_peer_options };
            let pairs: Vec<_> = pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            assert_eq!(pairs, [("region", "x"), ("token", "sEc,ReT")]);
            for text in ["sEcReT", "sEcReT,token=x", "token=x,=sEcReT"] {
                let problem = given(text).unwrap_err();
                assert_eq!(problem.kind(), ErrorKind::ValueValidation);
                let problem = problem.to_string();
                assert!(problem.contains(&format!("{flag}: write KEY=VALUE")) && !problem.contains("sEc"), "{problem}");
            }
        }
        let given = ["a=1,2".to_owned(), "b=3".to_owned()];
        assert_eq!(storage_options(&given).unwrap().into_values().collect::<Vec<_>>(), ["1,2", "3"]);
        assert!(storage_options(&[]).unwrap().is_empty());
        let problem = storage_options(&["sEcReT".to_owned()]).unwrap_err().to_string();
        assert!(problem.contains("storage_options") && !problem.contains("sEcReT"), "{problem}");
    }

    #[test]
    fn every_variable_of_the_command_line_is_known_where_others_are_taken_for_misspelt_ones() {
        let command = <crate::cli::Cli as clap::CommandFactory>::command();
        let verbs = command.get_subcommands().flat_map(|verb| std::iter::once(verb).chain(verb.get_subcommands()));
        let names = verbs.flat_map(Command::get_arguments).filter_map(Arg::get_env);
        let names: BTreeSet<_> = names.filter_map(|name| name.to_str().map(str::to_owned)).collect();
        assert!(names.len() > OPTIONS.len(), "{names:?}");
        let known: BTreeSet<_> = crate::pipeline::option_table::variables().collect();
        assert!(names.is_subset(&known), "{:?}", names.difference(&known));
    }
}
