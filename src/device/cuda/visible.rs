//! The GPUs that this process sees, and the one that is its own.
//!
//! CUDA itself applies `CUDA_VISIBLE_DEVICES`: ordinals here count the remaining devices. `device="cuda"` means, in this
//! order,
//! 1. the scheduler's assignment to the task: `BOWSTRING_RESOURCES`, the JSON of Spark's `TaskContext.resources()` or of
//!    its `--resources` file (SPARK-24615), or the path of such a file. Spark's addresses are the machine's numbers or
//!    identifiers, so if `CUDA_VISIBLE_DEVICES` is set they are looked up in it;
//! 2. the process's rank on its machine, from the launcher's variable;
//! 3. GPU 0.
//!
//! Nothing here makes a context: it queries the driver only for names and numbers.

#![expect(unsafe_code, reason = "questions to the CUDA driver; the bounds are stated at each use")]

use std::ffi::{CStr, c_char, c_int};
use std::fs;

use serde::Serialize;
use serde_json::Value;

use super::driver::{self, Driver};
use super::pinned;
use crate::device::spec::Gpu;
use crate::device::traits::refused;
use crate::error::{Error, Result};
use crate::hex;

/// Environment variable with the resources that the scheduler assigned to the task, as JSON or as the path of a file.
pub(crate) const RESOURCES: &str = "BOWSTRING_RESOURCES";
/// CUDA's own selection of devices.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// The rank of a process on its machine, by launcher, in the order in which they are checked.
pub(crate) const LOCAL_RANKS: [&str; 5] =
    ["LOCAL_RANK", "HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"];

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
const CAPABILITY: [c_int; 2] = [75, 76];

/// A GPU that this process sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// CUDA's number of it.
    pub ordinal: u32,
    /// E.g. `NVIDIA H200`; for a part of one, e.g. `NVIDIA A100 MIG 1g.5gb`.
    pub name: String,
    /// `GPU-...`, or `MIG-...` for a part of a GPU.
    pub uuid: String,
    /// True for a part of a GPU (multi-instance GPU).
    pub mig: bool,
    /// In bytes.
    pub memory: u64,
    /// E.g. `9.0`.
    pub capability: String,
    /// On the PCI bus, e.g. `0000:3b:00.0`.
    pub bus: Option<String>,
    /// The NUMA node that it is next to, if the machine reports it.
    pub numa_node: Option<u32>,
}

/// A GPU, and the reason for choosing it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// CUDA's number of it.
    pub ordinal: u32,
    /// Origin, e.g. `LOCAL_RANK=1`.
    pub why: String,
}

/// The devices as `doctor` shows them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Inventory {
    /// The newest CUDA that the driver supports, e.g. `12.4`.
    pub driver: Option<String>,
    /// In CUDA's order.
    pub devices: Vec<Seen>,
    /// The GPU that `device="cuda"` selects here.
    pub own: Option<Found>,
    /// The reason that there is no usable GPU, or that the choice is not clear.
    pub problem: Option<String>,
}

/// The devices of this machine. Never fails: faults are in `problem`.
pub fn inventory() -> Inventory {
    let text = |error: Error| match error {
        Error::Device { why, .. } => why,
        other => other.chain(),
    };
    let driver = match driver::driver() {
        Ok(driver) => driver,
        Err(error) => return Inventory { driver: None, devices: Vec::new(), own: None, problem: Some(text(error)) },
    };
    let version = Some(driver.version_text());
    let seen = devices(driver).map(|devices| (choose(&Gpu::Default, variable, &devices), devices));
    match seen {
        Ok((Ok(own), devices)) => Inventory { driver: version, devices, own: Some(own), problem: None },
        Ok((Err(error), devices)) => Inventory { driver: version, devices, own: None, problem: Some(text(error)) },
        Err(error) => Inventory { driver: version, devices: Vec::new(), own: None, problem: Some(text(error)) },
    }
}

/// The GPU that `which` selects in this process.
///
/// # Errors
/// [`Error::Device`] if there is none; [`Error::Config`] if `which` names none of those present.
pub fn find(which: &Gpu) -> Result<Found> {
    choose(which, variable, &devices(driver::driver()?)?)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// All GPUs that the driver shows to this process.
fn devices(driver: &Driver) -> Result<Vec<Seen>> {
    let mut count = 0;
    // SAFETY: the pointer is valid for the one number that is written.
    driver.check(unsafe { (driver.call.cuDeviceGetCount)(&raw mut count) }, "cuda", "counting the GPUs")?;
    (0..u32::try_from(count).unwrap_or(0)).map(|ordinal| look(driver, ordinal)).collect()
}

fn look(driver: &Driver, ordinal: u32) -> Result<Seen> {
    let label = format!("cuda:{ordinal}");
    let ask = |code: c_int, what: &str| driver.check(code, &label, what);
    let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
    let (mut device, mut memory, mut uuid, mut name) = (0, 0_usize, [0_u8; 16], [0_u8; 256]);
    // SAFETY: the pointer is valid for the one number that is written.
    ask(unsafe { (driver.call.cuDeviceGet)(&raw mut device, number) }, "finding it")?;
    // SAFETY: the length is one less than the buffer's, so a zero stays at the end.
    let code = unsafe { (driver.call.cuDeviceGetName)(name.as_mut_ptr().cast(), name.len() as c_int - 1, device) };
    ask(code, "asking for its name")?;
    // SAFETY: an identifier has 16 bytes.
    ask(unsafe { (driver.call.cuDeviceGetUuid_v2)(uuid.as_mut_ptr(), device) }, "asking for its identifier")?;
    // SAFETY: the pointer is valid for the one number that is written.
    ask(unsafe { (driver.call.cuDeviceTotalMem_v2)(&raw mut memory, device) }, "asking for its memory")?;
    let mut capability = [0; 2];
    for (attribute, value) in CAPABILITY.into_iter().zip(&mut capability) {
        // SAFETY: as above.
        let code = unsafe { (driver.call.cuDeviceGetAttribute)(&raw mut *value, attribute, device) };
        ask(code, "asking for its compute capability")?;
    }
    let name = CStr::from_bytes_until_nul(&name).map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // The driver cannot be queried for it, but its names have this word.
    let mig = name.contains(" MIG ");
    let bus = bus_address(driver, device);
    Ok(Seen {
        ordinal,
        uuid: format!("{}-{}", if mig { "MIG" } else { "GPU" }, hyphenated(&uuid)),
        mig,
        memory: memory as u64,
        capability: format!("{}.{}", capability[0], capability[1]),
        numa_node: bus.as_deref().and_then(pinned::node_of),
        bus,
        name,
    })
}

/// Address of a device on the PCI bus; `None` if the driver does not report it.
pub(super) fn bus_address(driver: &Driver, device: c_int) -> Option<String> {
    let mut text = [0 as c_char; 32];
    // SAFETY: the length is one less than the buffer's, so a zero stays at the end.
    let code = unsafe { (driver.call.cuDeviceGetPCIBusId)(text.as_mut_ptr(), text.len() as c_int - 1, device) };
    // SAFETY: the last byte is 0 whatever the driver wrote.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().to_ascii_lowercase();
    (code == 0 && !text.is_empty()).then_some(text)
}

fn hyphenated(uuid: &[u8; 16]) -> String {
    [&uuid[..4], &uuid[4..6], &uuid[6..8], &uuid[8..10], &uuid[10..]].map(hex::of).join("-")
}

/// The GPU of `devices` that `which` selects, with variables as `lookup` returns them.
///
/// # Errors
/// As [`find`].
pub fn choose(which: &Gpu, lookup: impl Fn(&str) -> Option<String>, devices: &[Seen]) -> Result<Found> {
    let visible = lookup(VISIBLE);
    if devices.is_empty() {
        let why = match visible {
            Some(list) => format!("the driver shows no GPU; {VISIBLE}={list:?} may hide them"),
            None => "the driver shows no GPU".to_owned(),
        };
        return Err(refused("cuda", "no usable GPU", why));
    }
    let listed: Vec<&str> = visible.iter().flat_map(|list| list.split(',')).map(str::trim).collect();
    match which {
        Gpu::Ordinal(ordinal) => one(*ordinal, devices, &listed, format!("device=cuda:{ordinal}")),
        Gpu::Uuid(uuid) => by_uuid(uuid, devices, &listed)
            .map(|ordinal| Found { ordinal, why: format!("device=cuda:{uuid}") })
            .ok_or_else(|| {
                let there: Vec<_> = devices.iter().map(|device| device.uuid.as_str()).collect();
                Error::config("device", format!("no GPU {uuid} is visible here; there are {}", there.join(", ")))
            }),
        Gpu::Default => match lookup(RESOURCES).filter(|text| !text.trim().is_empty()) {
            Some(text) => by_resources(&text, &lookup, devices, &listed),
            None => by_rank(&lookup, devices, &listed),
        },
    }
}

fn one(ordinal: u32, devices: &[Seen], listed: &[&str], why: String) -> Result<Found> {
    if (ordinal as usize) < devices.len() {
        return Ok(Found { ordinal, why });
    }
    let list = if listed.is_empty() { String::new() } else { format!(" ({VISIBLE}={})", listed.join(",")) };
    let problem = format!("{why}, but this process sees {} GPU(s), from 0{list}", devices.len());
    Err(Error::config("device", problem))
}

/// The GPU whose identifier begins with `uuid`, by CUDA's list first: only that knows MIG's older names.
fn by_uuid(uuid: &str, devices: &[Seen], listed: &[&str]) -> Option<u32> {
    let in_list = listed.iter().position(|entry| entry.starts_with(uuid) && !entry.is_empty());
    let known = |uuid: &str| {
        let wanted = uuid.trim_start_matches("MIG-").trim_start_matches("GPU-").to_ascii_lowercase();
        let mut matching = devices
            .iter()
            .filter(|device| !wanted.is_empty() && device.uuid.get(4..).is_some_and(|rest| rest.starts_with(&wanted)))
            .map(|d| d.ordinal);
        // A prefix shared by several names none.
        matching.next().filter(|_| matching.next().is_none())
    };
    in_list.filter(|at| *at < devices.len()).and_then(|at| u32::try_from(at).ok()).or_else(|| known(uuid))
}

fn by_rank(lookup: &impl Fn(&str) -> Option<String>, devices: &[Seen], listed: &[&str]) -> Result<Found> {
    let Some((name, rank)) = local_rank(lookup) else {
        return Ok(Found { ordinal: 0, why: "the first GPU: no launcher and no scheduler names one".to_owned() });
    };
    let why = format!("{name}={rank}");
    // A launcher that shows each process only its own GPU.
    if devices.len() == 1 {
        return Ok(Found { ordinal: 0, why: format!("{why}, and the only GPU that is visible") });
    }
    one(rank, devices, listed, why)
}

fn local_rank(lookup: &impl Fn(&str) -> Option<String>) -> Option<(&'static str, u32)> {
    LOCAL_RANKS.into_iter().find_map(|name| Some((name, lookup(name)?.trim().parse().ok()?)))
}

/// By the scheduler's assignment: one address, or that of this process's local rank among them.
fn by_resources(
    text: &str,
    lookup: &impl Fn(&str) -> Option<String>,
    devices: &[Seen],
    listed: &[&str],
) -> Result<Found> {
    let wrong = |problem: String| Error::config("device", format!("{RESOURCES}: {problem}"));
    let text = text.trim();
    let json = if text.starts_with(['[', '{']) {
        text.to_owned()
    } else {
        fs::read_to_string(text).map_err(|error| wrong(format!("{text} cannot be read: {error}")))?
    };
    let value: Value = serde_json::from_str(&json).map_err(|error| wrong(format!("it is not JSON: {error}")))?;
    let addresses = addresses(&value).ok_or_else(|| wrong("it has no addresses of a resource \"gpu\"".to_owned()))?;
    let rank = local_rank(lookup).map_or(0, |(_, rank)| rank as usize);
    let Some(address) = addresses.get(rank).or_else(|| addresses.first()).map(String::as_str) else {
        return Err(refused("cuda", "no usable GPU", format!("{RESOURCES}: the task was given no GPU")));
    };
    let why = format!("address {address} of the task's resources");
    if let Some(at) = listed.iter().position(|entry| *entry == address) {
        return one(u32::try_from(at).unwrap_or(u32::MAX), devices, listed, why);
    }
    match address.parse() {
        Ok(ordinal) if listed.is_empty() => one(ordinal, devices, listed, why),
        Ok(_) => Err(wrong(format!("address {address} is not in {VISIBLE}={}", listed.join(",")))),
        Err(_) => by_uuid(address, devices, listed)
            .map(|ordinal| Found { ordinal, why })
            .ok_or_else(|| wrong(format!("no GPU {address} is visible here"))),
    }
}

/// The addresses of the resource `gpu`, in any of the forms that Spark writes: `{"name": "gpu", "addresses": [..]}`,
/// `{"id": {"resourceName": "gpu"}, "addresses": [..]}`, a list of those, or `{"gpu": ..}` with either, or with the
/// addresses.
fn addresses(value: &Value) -> Option<Vec<String>> {
    let list = |value: &Value| -> Option<Vec<String>> {
        let text = |address: &Value| {
            address
                .as_str()
                .map(|text| text.trim().to_owned())
                .or_else(|| address.as_u64().map(|number| number.to_string()))
        };
        value.as_array()?.iter().map(text).collect()
    };
    match value {
        Value::Array(entries) => entries.iter().find_map(addresses),
        Value::Object(fields) => {
            let name = fields.get("name").or_else(|| fields.get("id")?.get("resourceName")).and_then(Value::as_str);
            match (name, fields.get("gpu")) {
                (Some("gpu"), _) => list(fields.get("addresses")?),
                (None, Some(gpu)) => list(gpu).or_else(|| list(gpu.get("addresses")?)),
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(count: u32) -> Vec<Seen> {
        let gpu = |ordinal: u32| Seen {
            ordinal,
            name: "A GPU".to_owned(),
            uuid: format!("GPU-{ordinal}abc0000-0000-0000-0000-000000000000"),
            mig: false,
            memory: 1,
            capability: "9.0".to_owned(),
            bus: None,
            numa_node: None,
        };
        (0..count).map(gpu).collect()
    }

    fn with(which: &Gpu, variables: &[(&str, &str)], count: u32) -> Result<Found> {
        let lookup = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        choose(which, lookup, &gpus(count))
    }

    fn default(variables: &[(&str, &str)], count: u32) -> Option<u32> {
        with(&Gpu::Default, variables, count).map(|found| found.ordinal).ok()
    }

    #[test]
    fn launchers_name_a_gpu_by_the_local_rank() {
        assert_eq!(default(&[], 4), Some(0));
        assert_eq!(default(&[("LOCAL_RANK", "3")], 4), Some(3));
        assert_eq!(default(&[("SLURM_LOCALID", "1"), ("LOCAL_RANK", "2")], 4), Some(2));
        assert_eq!(default(&[("LOCAL_RANK", "3")], 1), Some(0), "a launcher that shows each process its own GPU");
        let error = with(&Gpu::Default, &[("LOCAL_RANK", "4"), ("CUDA_VISIBLE_DEVICES", "0,1")], 2).unwrap_err();
        assert!(error.to_string().contains("LOCAL_RANK=4") && error.to_string().contains("=0,1"), "{error}");
    }

    #[test]
    fn spark_names_a_gpu_by_address() {
        let forms = [
            r#"{"name": "gpu", "addresses": ["2"]}"#,
            r#"[{"id": {"componentName": "spark.executor", "resourceName": "gpu"}, "addresses": ["2"]}]"#,
            r#"[{"name": "fpga", "addresses": ["9"]}, {"name": "gpu", "addresses": ["2"]}]"#,
            r#"{"gpu": {"name": "gpu", "addresses": ["2"]}}"#,
            r#"{"fpga": ["9"], "gpu": [2]}"#,
        ];
        for form in forms {
            assert_eq!(default(&[(RESOURCES, form)], 4), Some(2), "{form}");
            // CUDA counts the entries of its list: address 2 is the second.
            assert_eq!(default(&[(RESOURCES, form), ("CUDA_VISIBLE_DEVICES", "7, 2")], 2), Some(1), "{form}");
            assert_eq!(default(&[(RESOURCES, form), ("CUDA_VISIBLE_DEVICES", "7,1")], 2), None, "{form}");
            assert_eq!(default(&[(RESOURCES, form)], 2), None, "{form}");
        }
        let two = r#"{"name": "gpu", "addresses": ["1", "GPU-3abc"]}"#;
        assert_eq!(default(&[(RESOURCES, two), ("LOCAL_RANK", "1")], 4), Some(3));
        assert_eq!(default(&[(RESOURCES, two), ("LOCAL_RANK", "9")], 4), Some(1));
        for wrong in ["{", "[]", r#"{"name": "fpga", "addresses": ["0"]}"#, r#"{"gpu": []}"#, "/no/such/file"] {
            assert_eq!(default(&[(RESOURCES, wrong)], 4), None, "{wrong}");
        }
        assert_eq!(default(&[(RESOURCES, " "), ("LOCAL_RANK", "1")], 4), Some(1), "empty: not given");
    }

    #[test]
    fn resources_may_be_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("resources.json");
        fs::write(&path, r#"[{"id": {"resourceName": "gpu"}, "addresses": ["1"]}]"#).unwrap();
        assert_eq!(default(&[(RESOURCES, path.to_str().unwrap())], 2), Some(1));
    }

    #[test]
    fn identifiers_name_a_gpu_if_they_name_one() {
        let uuid =
            |text: &str, list: &[(&str, &str)]| with(&Gpu::Uuid(text.to_owned()), list, 3).map(|f| f.ordinal).ok();
        assert_eq!(uuid("GPU-1abc", &[]), Some(1));
        assert_eq!(uuid("GPU-1ABC0000-0000-0000-0000-000000000000", &[]), Some(1));
        assert_eq!(uuid("MIG-2abc", &[]), Some(2));
        assert_eq!(uuid("GPU-9", &[]), None);
        let old = [("CUDA_VISIBLE_DEVICES", "MIG-GPU-77/1/0")];
        assert_eq!(uuid("MIG-GPU-77/1/0", &old), Some(0), "a name that only CUDA's list knows");
        let error = with(&Gpu::Uuid("GPU-9".to_owned()), &[], 2).unwrap_err().to_string();
        assert!(error.contains("GPU-0abc") && error.contains("GPU-1abc"), "{error}");
    }

    #[test]
    fn no_gpu_says_who_may_hide_them() {
        let error = with(&Gpu::Ordinal(0), &[("CUDA_VISIBLE_DEVICES", "")], 0).unwrap_err();
        assert!(matches!(&error, Error::Device { why, .. } if why.contains("CUDA_VISIBLE_DEVICES")), "{error}");
        assert!(with(&Gpu::Ordinal(1), &[], 1).is_err());
        assert_eq!(hyphenated(&[0xA0; 16]), "a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0");
    }
}
