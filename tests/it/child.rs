//! Child processes for tests that cannot share one: kills, limits, drivers that are loaded once. They run this binary again, in a
//! role.

use std::env;
use std::ffi::OsString;
use std::process::{Child, Command, Stdio};

/// Names the role to a child.
const ROLE: &str = "TEST_ROLE";

/// Arguments that select the test that plays the role.
const ARGUMENTS: [&str; 5] = ["--exact", "child::role", "--ignored", "--nocapture", "--test-threads=1"];

/// All roles.
const ROLES: &[(&str, fn())] = &[
    #[cfg(all(feature = "cloud", unix))]
    ("cache::reader", crate::cache::reader),
    ("corrupt::in_a_small_process", crate::corrupt::in_a_small_process),
    #[cfg(target_os = "linux")]
    ("crash::make", crate::crash::make),
    #[cfg(all(feature = "cloud", unix))]
    ("files::reader", crate::files::reader),
    ("kill::worker", crate::kill::worker),
    ("memory::many_epochs", crate::memory::many_epochs),
    ("memory::slow_consumer", crate::memory::slow_consumer),
    #[cfg(feature = "flight")]
    ("flight_hostile::hostile_server", crate::flight_hostile::hostile_server),
    #[cfg(all(feature = "cli", feature = "flight", unix))]
    ("flight_kill::rank", crate::flight_kill::rank),
    #[cfg(all(feature = "flight", unix))]
    ("flight_put::vanishing", crate::flight_put::vanishing),
    #[cfg(feature = "flight")]
    ("put::writer", crate::put::writer),
    #[cfg(all(feature = "flight", target_os = "linux"))]
    ("shm::rank", crate::shm::rank),
    #[cfg(all(feature = "flight", target_os = "linux"))]
    ("shm::server", crate::shm::server),
    #[cfg(all(feature = "flight", target_os = "linux", feature = "cuda"))]
    ("conformance::on_a_fake_gpu::gpu", crate::conformance::on_a_fake_gpu::gpu),
    #[cfg(all(feature = "flight", target_os = "linux", feature = "cuda"))]
    ("conformance::on_a_fake_gpu::pinned", crate::conformance::on_a_fake_gpu::pinned),
    #[cfg(all(target_os = "linux", feature = "cuda"))]
    ("device::cuda::failures", crate::device::cuda::failures),
    #[cfg(all(target_os = "linux", feature = "cuda"))]
    ("device::cuda::inventory", crate::device::cuda::inventory),
    #[cfg(all(target_os = "linux", feature = "cuda"))]
    ("device::cuda::manners", crate::device::cuda::manners),
    #[cfg(all(target_os = "linux", feature = "cuda"))]
    ("device::cuda::refused", crate::device::cuda::refused),
    #[cfg(all(target_os = "linux", feature = "cuda"))]
    ("device::cuda::reuse", crate::device::cuda::reuse),
    #[cfg(all(target_os = "linux", feature = "cuda"))]
    ("device::cuda::without_a_driver", crate::device::cuda::without_a_driver),
    #[cfg(all(target_os = "linux", feature = "cuda"))]
    ("device::driven::loader_over_the_fake", crate::device::driven::loader_over_the_fake),
    #[cfg(all(target_os = "linux", feature = "cuda"))]
    ("device::driven::loader_without_a_gpu", crate::device::driven::loader_without_a_gpu),
    #[cfg(all(target_os = "linux", feature = "cuda"))]
    ("device::driven::suite_over_the_fake", crate::device::driven::suite_over_the_fake),
    #[cfg(all(target_os = "linux", feature = "cuda"))]
    ("device::kernels::conversions", crate::device::kernels::conversions),
    #[cfg(all(target_os = "linux", feature = "cuda"))]
    ("device::nvjpeg::boxes", crate::device::nvjpeg::boxes),
    #[cfg(all(target_os = "linux", feature = "cuda"))]
    ("device::nvjpeg::described", crate::device::nvjpeg::described),
    #[cfg(all(target_os = "linux", feature = "cuda"))]
    ("device::nvjpeg::failing", crate::device::nvjpeg::failing),
    #[cfg(all(target_os = "linux", feature = "cuda"))]
    ("device::nvjpeg::in_a_folder", crate::device::nvjpeg::in_a_folder),
    #[cfg(all(target_os = "linux", feature = "cuda"))]
    ("device::nvjpeg::lanes", crate::device::nvjpeg::lanes),
    #[cfg(all(target_os = "linux", feature = "cuda"))]
    ("device::nvjpeg::loader", crate::device::nvjpeg::loader),
    #[cfg(all(target_os = "linux", feature = "cuda"))]
    ("device::nvjpeg::missing", crate::device::nvjpeg::missing),
    #[cfg(all(target_os = "linux", feature = "cuda"))]
    ("device::nvjpeg::mixed", crate::device::nvjpeg::mixed),
    #[cfg(all(target_os = "linux", feature = "cuda"))]
    ("device::nvjpeg::no_gpu", crate::device::nvjpeg::no_gpu),
];

#[test]
#[ignore = "plays a role in a process that another test starts"]
fn role() {
    let Some(name) = env::var_os(ROLE) else { return };
    let (_, play) = ROLES.iter().find(|(known, _)| name == *known).unwrap_or_else(|| panic!("no role {name:?}"));
    play();
}

/// Returns a command for a child in the role `name`.
pub(crate) fn command(name: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(ARGUMENTS).env(ROLE, known(name));
    command
}

/// The same, limited by the shell's `ulimit`.
pub(crate) fn limited(name: &str, limit: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")]);
    command.arg(env::current_exe().unwrap()).args(ARGUMENTS).env(ROLE, known(name));
    command
}

/// Starts a child in the role `name`, whose output is read.
pub(crate) fn start(name: &str, variables: &[(&str, String)]) -> Child {
    let mut command = command(name);
    command.envs(variables.iter().map(|(key, value)| (key, value)));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn known(name: &str) -> OsString {
    assert!(ROLES.iter().any(|(known, _)| *known == name), "no role {name}");
    name.into()
}
