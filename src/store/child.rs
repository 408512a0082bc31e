//! Programs that this process starts and waits for, with a limit.

use std::io;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// Pause between two looks at a program.
const LOOK: Duration = Duration::from_millis(2);
/// Time that a killed program has to end. One that the kernel holds takes longer: nobody waits for it.
const DYING: Duration = Duration::from_secs(1);

/// Waits until `child` has ended and `is_read` says that its output is read; returns its status. After `limit` it is killed: `None`.
pub(super) fn within(child: &mut Child, limit: Duration, is_read: impl Fn() -> bool) -> io::Result<Option<ExitStatus>> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()?.filter(|_| is_read()) {
            return Ok(Some(status));
        }
        if began.elapsed() > limit {
            break;
        }
        std::thread::sleep(LOOK);
    }
    // One of another user, such as a program that is setuid, cannot be killed.
    drop(child.kill());
    let killed = Instant::now();
    while child.try_wait()?.is_none() && killed.elapsed() < DYING {
        std::thread::sleep(LOOK);
    }
    Ok(None)
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_program_that_does_not_end_is_killed_and_leaves_nothing() {
        let start = |script: &str| Command::new("sh").args(["-c", script]).spawn().unwrap();
        let (long, short) = (Duration::from_secs(60), Duration::from_millis(20));
        let status = within(&mut start("exit 3"), long, || true).unwrap();
        assert_eq!(status.and_then(|status| status.code()), Some(3));
        let mut endless = start("exec sleep 600");
        assert_eq!(within(&mut endless, short, || true).unwrap(), None);
        assert!(endless.try_wait().unwrap().is_some(), "it is not left behind");
        assert_eq!(within(&mut start("exit 0"), short, || false).unwrap(), None, "its output is not read");
    }
}
