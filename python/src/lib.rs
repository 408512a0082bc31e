//! Python bindings of bowstring: the module `bowstring._native`.
//!
//! It is thin: the Python package holds the signatures, this crate only what needs Rust. Nothing here waits while holding the GIL.

mod arrow;
mod audit;
mod buffers;
mod calls;
mod cli;
#[cfg(feature = "convert")]
mod convert;
mod credentials;
mod dlpack;
mod doctor;
mod errors;
mod field;
mod files;
mod fork;
mod gang;
mod index;
mod loader;
mod log;
mod nvidia;
mod options;
mod own;
mod petastorm;
mod plan;
mod preview;
mod raised;
mod rank;
mod row_groups;
mod server;
mod sound;
mod tensor;
mod traces;
mod wait;
mod writer;

#[global_allocator]
static ALLOCATOR: bowstring::memory::CachingAllocator = bowstring::memory::CachingAllocator;

/// The extension module.
#[pyo3::pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_export]
    use super::arrow::ArrowArray;
    #[pymodule_export]
    use super::audit::audit;
    #[pymodule_export]
    use super::buffers::PyBuffers;
    #[pymodule_export]
    use super::calls::calls_done;
    #[pymodule_export]
    use super::cli::command_line;
    #[cfg(feature = "convert")]
    #[pymodule_export]
    use super::convert::{PyConversion, convert, convert_plan, convert_task, verify};
    #[pymodule_export]
    use super::doctor::doctor;
    #[pymodule_export]
    use super::files::{PyFile, PyFileSystem, PyFileWriter, uploads_done};
    #[pymodule_export]
    use super::gang::PyGang;
    #[pymodule_export]
    use super::index::{dataset_index, write_index};
    #[pymodule_export]
    use super::loader::{PyLoader, PyPass};
    #[pymodule_export]
    use super::options::{column_is_meant, misspelt_variable, option_from_text, option_table};
    #[pymodule_export]
    use super::own::PyOwnStore;
    #[pymodule_export]
    use super::petastorm::{petastorm_metadata, unischema_metadata};
    #[pymodule_export]
    use super::plan::plan;
    #[pymodule_export]
    use super::preview::preview;
    #[pymodule_export]
    use super::rank::{launched, rank};
    #[pymodule_export]
    use super::row_groups::PyRowGroups;
    #[pymodule_export]
    use super::server::PyServer;
    #[pymodule_export]
    use super::tensor::{PyTensor, by_dlpack};
    #[pymodule_export]
    use super::writer::PyDatasetWriter;

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::log::listen();
        super::fork::watch()
    }
}
