//! Random lives of loaders, against a model of what their docs say: a position, and the rows of each step by a table.
//!
//! The table is of loaders that read an epoch from its begin and do nothing else; its rows are checked by themselves.

use std::collections::HashMap;

use bowstring::Loader;
use bowstring::device::AnyBatch;
use bowstring::plan::State;

use crate::support::{self, Random};

const ROWS: usize = 97;
const BATCH: u64 = 8;
const WORLDS: [u32; 4] = [1, 2, 4, 8];
/// Epochs that lives reach.
const EPOCHS: u64 = 4;

/// Ids of each rank, by world size, epoch and step.
type Table = HashMap<(u32, u64, u64), Vec<Vec<i64>>>;

fn open(data: &tempfile::TempDir, world: u32) -> Vec<Loader> {
    (0..world).map(|rank| Loader::open(support::options(data.path(), BATCH, rank, world)).unwrap()).collect()
}

/// The table, and the steps of an epoch.
fn table(data: &tempfile::TempDir) -> (Table, u64) {
    let (mut table, mut steps) = (Table::new(), None);
    for world in WORLDS {
        let mut loaders = open(data, world);
        for epoch in 0..EPOCHS + 1 {
            let mut all = Vec::new();
            let ranks: Vec<_> = loaders.iter_mut().map(support::drain).collect();
            let count = *steps.get_or_insert(ranks[0].len() as u64);
            for step in 0..count {
                let rows: Vec<Vec<i64>> = ranks.iter().map(|rank| rank[step as usize].clone()).collect();
                let mut ids = rows.concat();
                all.extend_from_slice(&ids);
                let whole = table.get(&(1, epoch, step)).map(|ranks: &Vec<Vec<i64>>| ranks.concat());
                ids.sort_unstable();
                let mut whole = whole.unwrap_or_else(|| ids.clone());
                whole.sort_unstable();
                assert_eq!(ids, whole, "a step has the same rows in every world");
                table.insert((world, epoch, step), rows);
            }
            assert!(ranks.iter().all(|rank| rank.len() as u64 == count), "all ranks make the same number of steps");
            all.sort_unstable();
            assert_eq!(all, (0..ROWS as i64).collect::<Vec<_>>(), "each row once");
        }
    }
    (table, steps.unwrap())
}

/// The position of a loader, as its docs define it.
#[derive(Debug, Clone, Copy)]
struct Model {
    steps: u64,
    epoch: u64,
    step: u64,
    /// Nothing was taken since it was opened or moved.
    fresh: bool,
}

impl Model {
    /// The step that `next` yields; `None` at an epoch's end.
    fn next(&mut self) -> Option<(u64, u64)> {
        self.fresh = false;
        if self.step == self.steps {
            self.to(self.epoch + 1, 0);
            return None;
        }
        self.step += 1;
        Some((self.epoch, self.step - 1))
    }

    /// The step that `peek` yields.
    fn peek(&self) -> (u64, u64) {
        if self.step == self.steps { (self.epoch + 1, 0) } else { (self.epoch, self.step) }
    }

    /// Moves there, where nothing was taken.
    fn to(&mut self, epoch: u64, step: u64) {
        (self.epoch, self.step, self.fresh) = (epoch, step, true);
    }

    fn set_epoch(&mut self, epoch: u64) {
        if !(self.fresh && epoch == self.epoch) {
            self.to(epoch, 0);
        }
    }

    fn begin(&mut self) {
        if !self.fresh {
            self.to(self.epoch + 1, 0);
        }
    }
}

/// One life of the loaders of a gang, in lockstep. Returns the steps that it took.
fn live(seed: u64, data: &tempfile::TempDir, table: &Table, steps: u64) -> u64 {
    let mut random = Random(seed);
    let mut world = random.pick(&WORLDS);
    let mut loaders = open(data, world);
    let mut model = Model { steps, epoch: 0, step: 0, fresh: true };
    let mut saved: Vec<((u64, u64), State)> = Vec::new();
    let mut taken = 0;
    for _ in 0..30 {
        match random.below(11) {
            0..4 => {
                for _ in 0..1 + random.below(steps) {
                    let expected = model.next();
                    let batches = loaders.iter_mut().map(|loader| loader.next().unwrap());
                    let found: Vec<_> = batches.map(|batch| batch.map(|batch| support::ids(&batch))).collect();
                    let rows = expected.map(|(epoch, step)| table[&(world, epoch, step)].clone());
                    let rows: Vec<_> =
                        rows.map_or(vec![None; world as usize], |rows| rows.into_iter().map(Some).collect());
                    assert_eq!(found, rows, "{expected:?} in a world of {world}");
                    taken += u64::from(expected.is_some());
                    if model.epoch >= EPOCHS {
                        return taken;
                    }
                }
            }
            4 => {
                for (rank, loader) in loaders.iter_mut().enumerate() {
                    let (epoch, step) = model.peek();
                    let Some(AnyBatch::Host(batch)) = loader.peek().unwrap() else { panic!("no batch") };
                    assert_eq!(support::ids(&batch), table[&(world, epoch, step)][rank], "a peek");
                }
            }
            5 => {
                // Taken, and given back: as if it had not been taken.
                if model.step < steps {
                    for loader in &mut loaders {
                        let batch = loader.next().unwrap().unwrap();
                        loader.put_back(batch);
                    }
                }
            }
            6 => {
                let states: Vec<State> = loaders.iter().map(Loader::state).collect();
                assert!(states.iter().all(|state| *state == states[0]), "a state is the same on every rank");
                saved.push(((model.epoch, model.step), states[0].clone()));
            }
            7 => {
                let Some(((epoch, step), state)) = (!saved.is_empty()).then(|| random.pick(&saved)) else { continue };
                loaders.iter_mut().for_each(|loader| loader.load_state(&state).unwrap());
                model.to(epoch, step);
            }
            8 => {
                // A new process group, of another size, goes on.
                let state = loaders[0].state();
                let document = serde_json::to_string(&state).unwrap();
                assert!(document.len() <= 4096);
                world = random.pick(&WORLDS);
                loaders = open(data, world);
                let state = serde_json::from_str(&document).unwrap();
                loaders.iter_mut().for_each(|loader| loader.load_state(&state).unwrap());
                model.fresh = true;
            }
            9 => {
                let epoch = random.below(EPOCHS);
                loaders.iter_mut().for_each(|loader| loader.set_epoch(epoch).unwrap());
                model.set_epoch(epoch);
            }
            _ => {
                for loader in &mut loaders {
                    loader.begin().unwrap();
                }
                model.begin();
                if model.epoch >= EPOCHS {
                    return taken;
                }
            }
        }
        for loader in &loaders {
            assert_eq!((loader.epoch(), loader.step()), (model.epoch, model.step));
        }
    }
    taken
}

#[test]
fn any_life_of_a_loader_is_as_its_model() {
    let data = tempfile::tempdir().unwrap();
    support::write(data.path(), &[vec![7, 20, 3], vec![30], vec![11, 26]], 1);
    let (table, steps) = table(&data);
    let given = support::variable("BOWSTRING_SEED").map(|seed| seed.parse::<u64>().unwrap());
    let seeds = given.map_or(0..if support::soak() { 5_000 } else { 100 }, |seed| seed..seed + 1);
    let mut taken = 0;
    for seed in seeds {
        println!("seed {seed}: BOWSTRING_SEED={seed} cargo test --test it any_life_of_a_loader");
        taken += live(seed, &data, &table, steps);
    }
    println!("{taken} steps");
}
