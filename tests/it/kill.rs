//! Real processes, killed at random: every row is trained on exactly once, whatever the sequence of worlds.
//!
//! A worker appends one line per finished step. After a kill the gang returns to the last step that all ranks finished, as training
//! returns to its checkpoint: later lines are forgotten with the weights they made.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use bowstring::Loader;
use bowstring::plan::State;

use crate::support::Random;
use crate::{child, support};

const GLOBAL: u64 = 24;
const WORLDS: [u32; 4] = [4, 2, 3, 1];

/// One rank's lines: step, then its rows.
fn finished_steps(log: &Path) -> BTreeMap<u64, Vec<i64>> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut steps = BTreeMap::new();
    for line in complete.lines() {
        let mut numbers = line.split(' ').map(|number| number.parse::<i64>().unwrap());
        let step = numbers.next().unwrap() as u64;
        assert!(steps.insert(step, numbers.collect()).is_none(), "step {step} twice in one life");
    }
    steps
}

#[test]
fn no_row_is_lost_or_repeated_by_kills_and_changes_of_world() {
    let kills = if support::soak() { 30 } else { 4 };
    let seed = support::seed("kill::");
    let mut random = Random(seed);

    let mut killed = 0;
    let mut epochs = 0;
    while killed < kills {
        killed += one_epoch(kills - killed, &mut random);
        epochs += 1;
    }
    println!("{killed} kills in {epochs} epochs: nothing missing, nothing twice");
}

/// Trains one epoch with up to `kills` kills and checks that each row was trained on once. Returns the number of kills.
fn one_epoch(kills: u64, random: &mut Random) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    fs::create_dir(&data).unwrap();
    support::write(&data, &[vec![700, 1300, 1], vec![2500, 40, 460], vec![999, 2001, 3000, 1000]], 2);
    let rows = 12_001;
    let mut trained: Vec<i64> = Vec::new();
    let mut state = None::<String>;
    let mut killed = 0;
    let mut life = 0;
    loop {
        let world = WORLDS[life % WORLDS.len()];
        let logs: Vec<_> = (0..world).map(|rank| directory.path().join(format!("life{life}-rank{rank}"))).collect();
        let mut gang: Vec<_> = (0..world)
            .map(|rank| {
                let log = logs[rank as usize].to_str().unwrap().to_owned();
                let variables = [
                    ("WORKER_DATA", data.to_str().unwrap().to_owned()),
                    ("WORKER_LOG", log),
                    ("WORKER_STATE", state.clone().unwrap_or_default()),
                    ("RANK", rank.to_string()),
                    ("WORLD_SIZE", world.to_string()),
                ];
                child::start("kill::worker", &variables)
            })
            .collect();
        // After the last kill, the gang runs to the end of the epoch.
        if killed < kills {
            std::thread::sleep(Duration::from_millis(40 + random.below(160)));
            for worker in &mut gang {
                worker.kill().unwrap();
            }
        }
        let mut survivors = 0;
        for worker in gang {
            let output = worker.wait_with_output().unwrap();
            let by_kill = std::os::unix::process::ExitStatusExt::signal(&output.status) == Some(9);
            assert!(output.status.success() || by_kill, "{}", String::from_utf8_lossy(&output.stderr));
            survivors += u32::from(!by_kill);
        }
        // Ranks that had already ended were not killed.
        killed += u64::from(survivors < world);
        let lines: Vec<_> = logs.iter().map(|log| finished_steps(log)).collect();
        let done = lines.iter().map(|steps| steps.len()).min().unwrap();
        for steps in &lines {
            trained.extend(steps.values().take(done).flatten());
        }
        // Any rank's state will do: they are all the same.
        let mut loader = Loader::open(support::options(&data, GLOBAL, 0, 1)).unwrap();
        if let Some(json) = &state {
            loader.load_state(&State::from_json(json).unwrap()).unwrap();
        }
        let position = State { step: loader.step() + done as u64, ..loader.state() };
        state = Some(position.to_json());
        life += 1;
        if position.step == loader.steps() {
            break;
        }
    }
    trained.sort_unstable();
    assert_eq!(trained, (0..rows).collect::<Vec<_>>(), "missing or repeated rows");
    killed
}

/// Runs one rank until it ends or is killed.
pub(crate) fn worker() {
    let data = support::variable("WORKER_DATA").unwrap();
    let mut options = support::options(Path::new(&data), GLOBAL, 0, 1);
    // Rank and world come from the environment, as under torchrun.
    (options.rank, options.world_size) = (None, None);
    let mut loader = Loader::open(options).unwrap();
    let state = support::variable("WORKER_STATE").unwrap();
    if !state.is_empty() {
        loader.load_state(&State::from_json(&state).unwrap()).unwrap();
    }
    let mut log = OpenOptions::new().create(true).append(true).open(support::variable("WORKER_LOG").unwrap()).unwrap();
    for batch in loader.iter() {
        let batch = batch.unwrap();
        let ids: Vec<_> = support::ids(&batch).iter().map(|id| format!(" {id}")).collect();
        // One write per step, so that a line is complete or missing.
        log.write_all(format!("{}{}\n", batch.step, ids.concat()).as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
}
