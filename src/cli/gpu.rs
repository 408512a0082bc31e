//! GPUs, as shown by `doctor`.

use std::fmt;

use serde::Serialize;

use crate::device::cuda::{
    nvjpeg,
    visible::{self, Inventory},
};

use crate::cli::table;

/// The GPUs.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    gpu: Inventory,
    /// The decoder for `decoder: nvjpeg`, if there is a driver.
    nvjpeg: Option<nvjpeg::Found>,
}

impl Report {
    pub(crate) fn new() -> Self {
        let gpu = visible::inventory();
        Self { nvjpeg: gpu.driver.as_ref().and_then(|_| nvjpeg::inventory().ok()), gpu }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inventory { driver, devices, own, problem } = &self.gpu;
        match driver {
            Some(version) => writeln!(f, "GPU           driver for CUDA {version}, {} visible", devices.len())?,
            None => writeln!(f, "GPU           none: batches are in host memory")?,
        }
        for device in devices {
            let part = if device.mig { ", a part of a GPU (MIG)" } else { "" };
            let node = device.numa_node.map_or(String::new(), |node| format!(", NUMA node {node}"));
            let name = table::plain(&device.name);
            let (memory, uuid) = (table::bytes(device.memory), &device.uuid);
            let capability = &device.capability;
            writeln!(f, "              cuda:{} {name}, {memory}, compute {capability}{part}{node}", device.ordinal)?;
            writeln!(f, "                     {uuid}")?;
        }
        if let Some(own) = own {
            writeln!(f, "              device=cuda is cuda:{}: {}", own.ordinal, table::plain(&own.why))?;
        }
        if let Some(problem) = problem {
            writeln!(f, "              {}", table::plain(problem))?;
        }
        match (&self.nvjpeg, driver) {
            (Some(found), _) => writeln!(f, "nvJPEG        {}, {}", found.version, table::plain(&found.path)),
            (None, Some(_)) => {
                writeln!(f, "nvJPEG        none that this program finds; Python looks in its packages too")
            }
            (None, None) => Ok(()),
        }
    }
}
