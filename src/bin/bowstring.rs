//! The `bowstring` binary: the command line of the library, in a process of its own.

use std::process::ExitCode;

use bowstring::cli::{self, Program};

#[global_allocator]
static ALLOCATOR: bowstring::memory::CachingAllocator = bowstring::memory::CachingAllocator;

fn main() -> ExitCode {
    let program = Program {
        command: std::env::current_exe().map(|path| vec![path.into_os_string()]).unwrap_or_default(),
        // No other code sets one in this process.
        log: |subscriber| drop(tracing::dispatcher::set_global_default(subscriber)),
        against: None,
    };
    ExitCode::from(cli::run(&program, std::env::args_os().skip(1)))
}
