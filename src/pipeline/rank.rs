//! The rank and world size of this process, from the environment that its launcher left.
//!
//! The launchers of `LAUNCHERS` are checked in order, and the first that gives both numbers wins; explicit options take
//! precedence over all (a Spark barrier stage passes them: its tasks learn their rank from the barrier context, not
//! from the environment). An environment in which launchers give one number and none gives both is an error: treating
//! it as a single process would read everything on every rank.

use serde::Serialize;

use super::option_table::option;
use crate::error::{Error, Result};

/// The form in which a launcher passes rank and world size to its processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Two variables with a number each.
    Numbers,
    /// As [`Form::Numbers`], under names that others use too: having one of the two is an error even if a later
    /// launcher gives both.
    Generic,
    /// TensorFlow's cluster in JSON: chief and workers in order.
    TfConfig,
    /// A number, and a list of hosts separated by commas; a list of one without the number is not a contradiction.
    Hosts,
    /// As [`Form::Numbers`]; without `srun` an allocation sets only the second, and the shell of a batch script both: it is
    /// rank 0 of the job's tasks and runs once. For one task that is not a contradiction.
    Slurm,
}

/// One launcher and its variables in the environment.
#[derive(Debug, Clone, Copy)]
pub struct Launcher {
    /// Its name.
    pub name: &'static str,
    /// The variable with the rank.
    pub rank: &'static str,
    /// The variable with the number of ranks; the same one for `TF_CONFIG`.
    pub world_size: &'static str,
    form: Form,
}

/// Launchers in the order in which they are checked.
///
/// torchrun and JAX come first because users set their variables by hand to override the rest (TorchDistributor and Ray
/// Train set torchrun's). Launchers that start one process per rank follow, the outer ones last: `TF_CONFIG` and TPU
/// hosts describe a pod, and SLURM's variables often the allocation in which `mpirun` or Horovod run, not the ranks.
pub(crate) const LAUNCHERS: [Launcher; 11] = [
    launcher("torchrun", "RANK", "WORLD_SIZE", Form::Generic),
    launcher("JAX", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", Form::Generic),
    launcher("Horovod", "HOROVOD_RANK", "HOROVOD_SIZE", Form::Numbers),
    launcher("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", Form::Numbers),
    launcher("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", Form::Numbers),
    launcher("PMI", "PMI_RANK", "PMI_SIZE", Form::Numbers),
    launcher("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", Form::Numbers),
    launcher("Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", Form::Numbers),
    launcher("TF_CONFIG", "TF_CONFIG", "TF_CONFIG", Form::TfConfig),
    launcher("TPU", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", Form::Hosts),
    launcher("SLURM", "SLURM_PROCID", "SLURM_NTASKS", Form::Slurm),
];

const fn launcher(name: &'static str, rank: &'static str, world_size: &'static str, form: Form) -> Launcher {
    Launcher { name, rank, world_size, form }
}

/// PMIx gives the rank and leaves the number of ranks to its server: the other variables come from Open MPI or SLURM.
const PMIX: &str = "PMIX_RANK";

/// What only `srun` sets: the number of its step, and that of the step's tasks, which may be fewer than the job's.
const STEP: &str = "SLURM_STEP_ID";
const STEP_TASKS: &str = "SLURM_STEP_NUM_TASKS";

/// The variables that are checked, each once, in order: those of the options, then those of launchers.
pub fn variables() -> impl Iterator<Item = &'static str> {
    let both = |launcher: &Launcher| {
        let second = (launcher.world_size != launcher.rank).then_some(launcher.world_size);
        std::iter::once(launcher.rank).chain(second)
    };
    OWN_VARIABLES.into_iter().chain(LAUNCHERS.iter().flat_map(both)).chain([STEP, STEP_TASKS, PMIX])
}

/// A rank and its origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Rank, from 0.
    pub rank: u32,
    /// Number of ranks, at least 1.
    pub world_size: u32,
    /// Origin, e.g. `torchrun (RANK=1, WORLD_SIZE=4)`.
    pub why: String,
}

/// The rank of this process according to its environment.
///
/// # Errors
/// [`Error::Config`] if a launcher's variables are not numbers or contradict each other, or if only one of the two is
/// set and no other launcher gives both.
pub fn discover() -> Result<Found> {
    discover_in(|name| std::env::var(name).ok())
}

/// The rank according to the variables that `lookup` returns. A variable of nothing but spaces counts as unset.
///
/// # Errors
/// As [`discover`].
pub(crate) fn discover_in(lookup: impl Fn(&str) -> Option<String>) -> Result<Found> {
    let alone = || Found { rank: 0, world_size: 1, why: "no launcher's variables are set: one process".to_owned() };
    Ok(said_in(lookup)?.unwrap_or_else(alone))
}

/// The variables of the options `rank` and `world_size`, which go before those of launchers.
const OWN_VARIABLES: [&str; 2] = ["BOWSTRING_RANK", "BOWSTRING_WORLD_SIZE"];

/// The rank of a loader that is given none: from the variables of its options, else as [`discover`].
///
/// # Errors
/// As there, and as [`resolve`].
pub fn of_environment() -> Result<Found> {
    of_environment_in(|name| std::env::var(name).ok())
}

fn of_environment_in(lookup: impl Fn(&str) -> Option<String>) -> Result<Found> {
    let mut own = [None; 2];
    for (number, (name, variable)) in own.iter_mut().zip(["rank", "world_size"].into_iter().zip(OWN_VARIABLES)) {
        let (Some(entry), Some(text)) = (option(name), lookup(variable)) else { continue };
        let value = entry.kind.parse(&text);
        let value = value.map_err(|problem| Error::config(entry.name, format!("{variable}: {problem}")))?;
        *number = value.as_u64().and_then(|value| u32::try_from(value).ok());
    }
    let [rank, world_size] = own;
    if rank.or(world_size).is_none() {
        return discover_in(lookup);
    }
    let why = || OWN_VARIABLES.join(" and ");
    resolve(rank, world_size).map(|found| Found { why: why(), ..found })
}

/// The number of tasks of the SLURM job in whose batch script this process runs, if that alone is known: its ranks are other processes.
pub fn batch_tasks() -> Option<u32> {
    batch_tasks_in(|name| std::env::var(name).ok())
}

fn batch_tasks_in(lookup: impl Fn(&str) -> Option<String>) -> Option<u32> {
    let slurm = LAUNCHERS.into_iter().find(|launcher| launcher.form == Form::Slurm)?;
    let is_other = |name: &&str| ![slurm.rank, slurm.world_size].contains(name);
    if variables().filter(is_other).any(|name| lookup(name).is_some()) {
        return None;
    }
    lookup(slurm.rank)?;
    lookup(slurm.world_size)?.trim().parse().ok()
}

/// The rank that a launcher gives in this process's environment; `None` if there is no launcher.
///
/// # Errors
/// As [`discover`].
pub fn said() -> Result<Option<Found>> {
    said_in(|name| std::env::var(name).ok())
}

fn said_in(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Found>> {
    let lookup = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
    let mut half = None;
    for launcher in LAUNCHERS.map(|launcher| launcher.in_step(lookup)) {
        match (lookup(launcher.rank), lookup(launcher.world_size)) {
            (None, None) => {}
            (Some(rank), Some(world_size)) if launcher.started(&world_size, lookup) => {
                return launcher.read(&rank, &world_size).map(Some);
            }
            (rank, world_size) => {
                let Some(error) = launcher.half(rank.as_deref(), world_size.as_deref()) else { continue };
                if launcher.form == Form::Generic {
                    return Err(error);
                }
                half.get_or_insert(error);
            }
        }
    }
    let pmix = lookup(PMIX).map(|rank| {
        let hint = "and nothing says how many ranks there are; give rank and world_size";
        Error::config("world_size", format!("{PMIX}={rank} is set, {hint}"))
    });
    match half.or(pmix) {
        Some(error) => Err(error),
        None => Ok(None),
    }
}

impl Launcher {
    /// The same, with the number of a step's tasks instead of the job's where SLURM gives it.
    fn in_step(self, lookup: impl Fn(&str) -> Option<String>) -> Self {
        let is_step = self.form == Form::Slurm && lookup(self.rank).is_some() && lookup(STEP_TASKS).is_some();
        if is_step { Self { world_size: STEP_TASKS, ..self } } else { self }
    }

    /// Returns true if it started this process as one of `world_size`: the shell of SLURM's batch scripts has the numbers too, and
    /// is alone.
    fn started(&self, world_size: &str, lookup: impl Fn(&str) -> Option<String>) -> bool {
        let is_step = || lookup(STEP).is_some_and(|number| number.trim().parse::<u32>().is_ok());
        self.form != Form::Slurm || self.world_size == STEP_TASKS || world_size.trim() == "1" || is_step()
    }

    /// The error for one variable of two, or for two that do not say that there are ranks; `None` if that is not a contradiction.
    fn half(&self, rank: Option<&str>, world_size: Option<&str>) -> Option<Error> {
        let one = |text: &str| match self.form {
            Form::Slurm => text.trim() == "1",
            Form::Hosts => !text.contains(','),
            _ => false,
        };
        if world_size.is_some_and(one) {
            return None;
        }
        let (option, set, value, missing) = match (rank, world_size) {
            (Some(_), Some(value)) => ("rank", self.world_size, value, STEP),
            (Some(value), None) => ("world_size", self.rank, value, self.world_size),
            (None, value) => ("rank", self.world_size, value.unwrap_or_default(), self.rank),
        };
        let hint =
            if self.form == Form::Slurm { "start it with srun, or give rank and world_size" } else { "set both" };
        Some(Error::config(option, format!("{set}={value} is set but {missing} is not ({}); {hint}", self.name)))
    }

    fn read(&self, rank: &str, world_size: &str) -> Result<Found> {
        if self.form == Form::TfConfig {
            return tf_config(rank);
        }
        let number = |option: &'static str, name: &str, text: &str| {
            let found = text.trim().parse::<u32>();
            found.map_err(|_| Error::config(option, format!("{name}={text:?} is not a number")))
        };
        let ranks = match self.form {
            Form::Hosts => u32::try_from(world_size.split(',').count()).unwrap_or(u32::MAX),
            _ => number("world_size", self.world_size, world_size)?,
        };
        let why = format!("{} ({}={rank}, {}={world_size})", self.name, self.rank, self.world_size);
        checked(number("rank", self.rank, rank)?, ranks, why)
    }
}

/// The task of a `TF_CONFIG`: the chief (or `master`) is rank 0, workers follow. An evaluator is not part of the
/// cluster and reads everything; a parameter server reads nothing, so requesting its rank is a mistake.
fn tf_config(text: &str) -> Result<Found> {
    let wrong = |problem: &str| Error::config("rank", format!("TF_CONFIG {problem}"));
    let config: serde_json::Value =
        serde_json::from_str(text).map_err(|error| wrong(&format!("is not JSON: {error}")))?;
    let tasks = |kind: &str| match &config["cluster"][kind] {
        serde_json::Value::Array(hosts) => hosts.len(),
        serde_json::Value::Object(hosts) => hosts.len(),
        _ => 0,
    };
    let chiefs = tasks("chief") + tasks("master");
    let ranks = chiefs + tasks("worker");
    let Some(kind) = config["task"]["type"].as_str() else {
        let alone = || checked(0, 1, "TF_CONFIG (no cluster)".to_owned());
        return if ranks == 0 { alone() } else { Err(wrong("has a cluster but no task.type: which task is this?")) };
    };
    let index = match &config["task"]["index"] {
        serde_json::Value::Number(number) => number.as_u64(),
        serde_json::Value::String(number) => number.trim().parse().ok(),
        serde_json::Value::Null => Some(0),
        _ => None,
    };
    let index = index.ok_or_else(|| wrong("has a task.index that is not a number"))?;
    let why = format!("TF_CONFIG (task {kind} {index} of {ranks} chiefs and workers)");
    let first = match kind {
        "chief" | "master" => 0,
        "worker" => chiefs as u64,
        "evaluator" => return checked(0, 1, format!("TF_CONFIG (task evaluator {index}: reads everything)")),
        _ => return Err(wrong(&format!("says task.type {kind:?}, which reads no data; give rank and world_size"))),
    };
    if index >= tasks(kind) as u64 {
        let problem = format!("says task {kind} {index}, but the cluster has {} of them", tasks(kind));
        return Err(wrong(&problem));
    }
    let number = |n: u64| u32::try_from(n).map_err(|_| wrong("has too many tasks"));
    checked(number(first + index)?, number(ranks as u64)?, why)
}

/// The rank from options if given, otherwise from the environment.
///
/// # Errors
/// [`Error::Config`] if only one option is given, or rank and world size contradict each other.
pub fn resolve(rank: Option<u32>, world_size: Option<u32>) -> Result<Found> {
    match (rank, world_size) {
        (None, None) => discover(),
        (Some(rank), Some(world_size)) => checked(rank, world_size, "given as options".to_owned()),
        (Some(_), None) => {
            Err(Error::config("world_size", "rank is given but world_size is not; give both or neither"))
        }
        (None, Some(_)) => Err(Error::config("rank", "world_size is given but rank is not; give both or neither")),
    }
}

fn checked(rank: u32, world_size: u32, why: String) -> Result<Found> {
    if rank < world_size {
        Ok(Found { rank, world_size, why })
    } else {
        Err(Error::config("rank", format!("rank {rank} is not below world_size {world_size}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &str) -> Result<Found> {
        let pairs: Vec<(&str, &str)> = variables.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
        discover_in(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn a_batch_script_knows_the_tasks_of_its_job_and_is_none() {
        let tasks = |variables: &str| {
            let pairs: Vec<(&str, &str)> =
                variables.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
            batch_tasks_in(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(tasks("SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=7"), Some(8));
        for known in ["RANK=1", "OMPI_COMM_WORLD_RANK=1", "SLURM_STEP_ID=0", "BOWSTRING_WORLD_SIZE=2"] {
            assert_eq!(tasks(&format!("SLURM_PROCID=0 SLURM_NTASKS=8 {known}")), None, "{known}");
        }
        assert_eq!((tasks("SLURM_NTASKS=8"), tasks("SLURM_PROCID=0"), tasks("")), (None, None, None));
    }

    /// The variables that each launcher really leaves, as far as they concern ranks and could be mistaken for one: 14
    /// of them and more.
    const ENVIRONMENTS: &[(&str, &str, (u32, u32))] = &[
        ("nothing", "", (0, 1)),
        ("torchrun", "RANK=5 LOCAL_RANK=1 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 MASTER_ADDR=a", (5, 8)),
        (
            "torchrun under srun",
            "RANK=2 WORLD_SIZE=4 LOCAL_RANK=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0",
            (2, 4),
        ),
        ("torchrun in a batch script", "RANK=2 WORLD_SIZE=4 LOCAL_RANK=2 SLURM_PROCID=0 SLURM_NTASKS=8", (2, 4)),
        ("Ray Train", "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 NODE_RANK=0 MASTER_PORT=4", (1, 2)),
        ("JAX", "JAX_COORDINATOR_ADDRESS=a:1 JAX_PROCESS_ID=3 JAX_NUM_PROCESSES=4", (3, 4)),
        (
            "Horovod over Open MPI",
            "HOROVOD_RANK=1 HOROVOD_SIZE=3 HOROVOD_LOCAL_RANK=1 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3",
            (1, 3),
        ),
        (
            "Open MPI in a SLURM allocation",
            "OMPI_COMM_WORLD_RANK=6 OMPI_COMM_WORLD_SIZE=8 PMIX_RANK=6 SLURM_NTASKS=2 SLURM_JOB_ID=9",
            (6, 8),
        ),
        (
            "Open MPI in a batch script of SLURM",
            "OMPI_COMM_WORLD_RANK=6 OMPI_COMM_WORLD_SIZE=8 PMIX_RANK=6 SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=9",
            (6, 8),
        ),
        (
            "MVAPICH",
            "MV2_COMM_WORLD_RANK=2 MV2_COMM_WORLD_SIZE=4 MV2_COMM_WORLD_LOCAL_RANK=0 PMI_RANK=2 PMI_SIZE=4",
            (2, 4),
        ),
        ("MPICH", "PMI_RANK=0 PMI_SIZE=2 PMI_FD=9", (0, 2)),
        ("Intel MPI", "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 I_MPI_HYDRA_PMI_CONNECT=1", (3, 4)),
        ("LSF, jsrun", "JSM_NAMESPACE_RANK=7 JSM_NAMESPACE_SIZE=12 JSM_NAMESPACE_LOCAL_RANK=1 PMIX_RANK=7", (7, 12)),
        ("Flux", "FLUX_TASK_RANK=1 FLUX_TASK_LOCAL_ID=0 FLUX_JOB_SIZE=2 FLUX_JOB_NNODES=2", (1, 2)),
        ("TPU pod", "TPU_WORKER_ID=1 TPU_WORKER_HOSTNAMES=a,b,c,d", (1, 4)),
        ("one TPU host", "TPU_WORKER_HOSTNAMES=localhost", (0, 1)),
        (
            "SLURM, srun",
            "SLURM_PROCID=3 SLURM_NTASKS=8 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=1 SLURM_NNODES=2 PMI_FD=3",
            (3, 8),
        ),
        (
            "SLURM, srun --mpi=pmix",
            "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=1 SLURM_STEP_NUM_TASKS=2 PMIX_RANK=1 PMIX_NAMESPACE=x",
            (1, 2),
        ),
        ("SLURM, the number of a step alone", "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=3", (1, 2)),
        (
            "SLURM, the shell of salloc as a step of its own",
            "SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1 SLURM_JOB_ID=9",
            (0, 1),
        ),
        ("SLURM, batch script of one task, no srun", "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_JOB_ID=9", (0, 1)),
        ("SLURM, salloc of one task, no srun", "SLURM_NTASKS=1 SLURM_JOB_ID=9", (0, 1)),
        ("half of PMI under srun", "PMI_RANK=1 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0", (1, 2)),
        (
            "TF_CONFIG, workers",
            r#"TF_CONFIG={"cluster":{"worker":["a:1","b:1"]},"task":{"type":"worker","index":1}}"#,
            (1, 2),
        ),
        (
            "TF_CONFIG, a chief and parameter servers",
            r#"TF_CONFIG={"cluster":{"chief":["c:1"],"worker":["a:1","b:1"],"ps":["p:1"]},"task":{"type":"worker","index":"1"}}"#,
            (2, 3),
        ),
        (
            "TF_CONFIG, evaluator",
            r#"TF_CONFIG={"cluster":{"worker":["a:1","b:1"]},"task":{"type":"evaluator","index":0}}"#,
            (0, 1),
        ),
        ("TF_CONFIG of one job", r#"TF_CONFIG={"environment":"cloud"}"#, (0, 1)),
    ];

    #[test]
    fn every_launcher_is_understood() {
        for (name, environment, expected) in ENVIRONMENTS {
            let found = with(environment).unwrap_or_else(|error| panic!("{name}: {}", error.chain()));
            assert_eq!((found.rank, found.world_size), *expected, "{name}: {}", found.why);
        }
        assert_eq!(with("RANK=1 WORLD_SIZE=4").unwrap().why, "torchrun (RANK=1, WORLD_SIZE=4)");
    }

    #[test]
    fn half_an_environment_is_an_error_that_names_the_rest() {
        for (environment, missing) in [
            ("RANK=1", "WORLD_SIZE"),
            ("WORLD_SIZE=2", "RANK"),
            ("WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2", "RANK"),
            ("JAX_PROCESS_ID=1", "JAX_NUM_PROCESSES"),
            ("HOROVOD_RANK=1", "HOROVOD_SIZE"),
            ("OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK"),
            ("MV2_COMM_WORLD_RANK=1", "MV2_COMM_WORLD_SIZE"),
            ("PMI_RANK=1", "PMI_SIZE"),
            ("JSM_NAMESPACE_RANK=1", "JSM_NAMESPACE_SIZE"),
            ("FLUX_TASK_RANK=1", "FLUX_JOB_SIZE"),
            ("TPU_WORKER_ID=1", "TPU_WORKER_HOSTNAMES"),
            ("TPU_WORKER_HOSTNAMES=a,b", "TPU_WORKER_ID"),
            ("SLURM_NTASKS=8 SLURM_JOB_ID=9", "SLURM_PROCID"),
            ("SLURM_PROCID=1", "SLURM_NTASKS"),
            // The shell of a batch script.
            ("SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_NPROCS=8 SLURM_LOCALID=0 SLURM_JOB_ID=7", "SLURM_STEP_ID"),
            ("SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_STEP_ID=batch", "srun"),
            ("PMIX_RANK=1", "world_size"),
        ] {
            let error = with(environment).expect_err(environment).chain();
            assert!(error.contains(missing), "{environment}: {error}");
        }
    }

    #[test]
    fn contradictions_are_named() {
        for bad in [
            "RANK=4 WORLD_SIZE=4",
            "RANK=-1 WORLD_SIZE=4",
            "SLURM_PROCID=x SLURM_NTASKS=4 SLURM_STEP_ID=0",
            "TPU_WORKER_ID=2 TPU_WORKER_HOSTNAMES=a,b",
            "TF_CONFIG={",
            r#"TF_CONFIG={"cluster":{"worker":["a","b"]}}"#,
            r#"TF_CONFIG={"cluster":{"worker":["a"]},"task":{"type":"worker","index":1}}"#,
            r#"TF_CONFIG={"cluster":{"worker":["a"],"ps":["b"]},"task":{"type":"ps","index":0}}"#,
            r#"TF_CONFIG={"cluster":{"worker":["a"]},"task":{"type":"worker","index":-1}}"#,
        ] {
            assert!(matches!(with(bad), Err(Error::Config { .. })), "{bad}");
        }
        assert!(resolve(Some(1), None).is_err() && resolve(Some(0), Some(0)).is_err());
        let own = |rank: &'static str, size: &'static str| {
            of_environment_in(move |name| {
                let found = [(OWN_VARIABLES[0], rank), (OWN_VARIABLES[1], size), ("RANK", "2"), ("WORLD_SIZE", "3")];
                let text = found.iter().find(|(known, _)| *known == name)?.1;
                (text != "unset").then(|| text.to_owned())
            })
        };
        let found = own("1", "4").unwrap();
        assert_eq!((found.rank, found.world_size, &*found.why), (1, 4, "BOWSTRING_RANK and BOWSTRING_WORLD_SIZE"));
        assert_eq!(own("unset", "unset").unwrap().rank, 2, "of the launcher");
        assert!(own("1", "unset").is_err() && own("x", "4").is_err() && own("4", "4").is_err());
        assert_eq!(resolve(Some(1), Some(2)).unwrap().rank, 1);
    }

    #[test]
    fn every_variable_is_shown_once() {
        let shown: Vec<&str> = variables().collect();
        let each: std::collections::BTreeSet<&str> = shown.iter().copied().collect();
        assert_eq!((shown.len(), shown.len()), (each.len(), OWN_VARIABLES.len() + LAUNCHERS.len() * 2 + 2));
    }
}
