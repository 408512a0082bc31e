//! Which rank of how many this process is, from the environment that its launcher left.
//!
//! The first launcher in [`LAUNCHERS`] with both its variables set wins; explicit options win over all. A launcher with only
//! one of its variables is passed over, except torchrun's: its names are generic, so half of them is a mistake worth naming.

use serde::Serialize;

use crate::error::{Error, Result};

/// Launchers in the order they are asked: name, variable of the rank, variable of the world size.
///
/// torchrun comes first because users set its variables by hand to override the rest; SLURM comes last because `mpirun` and
/// Horovod often run inside a SLURM job whose own variables describe the allocation, not the ranks.
pub const LAUNCHERS: [(&str, &str, &str); 5] = [
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Horovod", "HOROVOD_RANK", "HOROVOD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI", "PMI_RANK", "PMI_SIZE"),
    ("SLURM", "SLURM_PROCID", "SLURM_NTASKS"),
];

/// A rank, and why it is believed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Rank, from 0.
    pub rank: u32,
    /// Number of ranks, at least 1.
    pub world_size: u32,
    /// Where it came from, e.g. `torchrun (RANK=1, WORLD_SIZE=4)`.
    pub why: String,
}

/// The rank of this process by its environment.
///
/// # Errors
/// [`Error::Config`] if a launcher's variables are no numbers, contradict each other, or torchrun's are incomplete.
pub fn discover() -> Result<Found> {
    discover_in(|name| std::env::var(name).ok())
}

/// The rank by the variables that `lookup` gives.
///
/// # Errors
/// As [`discover`].
pub fn discover_in(lookup: impl Fn(&str) -> Option<String>) -> Result<Found> {
    for (launcher, rank_name, world_name) in LAUNCHERS {
        let (rank, world) = (lookup(rank_name), lookup(world_name));
        let (rank, world) = match (rank, world) {
            (Some(rank), Some(world)) => (rank, world),
            (None, None) => continue,
            _ if launcher != "torchrun" => continue,
            (Some(_), None) => return Err(Error::config("world_size", "RANK is set but WORLD_SIZE is not; set both")),
            (None, Some(_)) => return Err(Error::config("rank", "WORLD_SIZE is set but RANK is not; set both")),
        };
        let number = |name: &'static str, text: &str| {
            text.trim().parse::<u32>().map_err(|_| {
                let option = if name == rank_name { "rank" } else { "world_size" };
                Error::config(option, format!("{name}={text:?} is not a number"))
            })
        };
        let why = format!("{launcher} ({rank_name}={rank}, {world_name}={world})");
        let (rank, world_size) = (number(rank_name, &rank)?, number(world_name, &world)?);
        check(rank, world_size)?;
        return Ok(Found { rank, world_size, why });
    }
    Ok(Found { rank: 0, world_size: 1, why: "no launcher's variables are set: one process".to_owned() })
}

/// The rank from options where given, else from the environment.
///
/// # Errors
/// [`Error::Config`] if only one option is given, or rank and world size contradict each other.
pub fn resolve(rank: Option<u32>, world_size: Option<u32>) -> Result<Found> {
    match (rank, world_size) {
        (None, None) => discover(),
        (Some(rank), Some(world_size)) => {
            check(rank, world_size)?;
            Ok(Found { rank, world_size, why: "given as options".to_owned() })
        }
        (Some(_), None) => {
            Err(Error::config("world_size", "rank is given but world_size is not; give both or neither"))
        }
        (None, Some(_)) => Err(Error::config("rank", "world_size is given but rank is not; give both or neither")),
    }
}

fn check(rank: u32, world_size: u32) -> Result<()> {
    if rank < world_size {
        Ok(())
    } else {
        Err(Error::config("rank", format!("rank {rank} is not below world_size {world_size}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<Found> {
        discover_in(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn the_first_complete_launcher_wins() {
        let slurm = [("SLURM_PROCID", "3"), ("SLURM_NTASKS", "8")];
        let found = with(&slurm).unwrap();
        assert_eq!((found.rank, found.world_size), (3, 8));
        let both = [slurm.as_slice(), &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")]].concat();
        assert_eq!(with(&both).unwrap().world_size, 2);
        let all = [both.as_slice(), &[("RANK", "5"), ("WORLD_SIZE", "6")]].concat();
        assert!(with(&all).unwrap().why.starts_with("torchrun"));
        assert_eq!(with(&[("PMI_RANK", "1")]).unwrap().world_size, 1);
        assert_eq!(with(&[]).unwrap().rank, 0);
    }

    #[test]
    fn contradictions_are_named() {
        for bad in [
            vec![("RANK", "1")],
            vec![("WORLD_SIZE", "1")],
            vec![("RANK", "4"), ("WORLD_SIZE", "4")],
            vec![("RANK", "-1"), ("WORLD_SIZE", "4")],
            vec![("SLURM_PROCID", "x"), ("SLURM_NTASKS", "4")],
        ] {
            assert!(matches!(with(&bad), Err(Error::Config { .. })), "{bad:?}");
        }
        assert!(resolve(Some(1), None).is_err() && resolve(Some(0), Some(0)).is_err());
        assert_eq!(resolve(Some(1), Some(2)).unwrap().rank, 1);
    }
}
