//! Limits of the contents of a gang call, and the parts that are kept. A refused call leaves nothing behind.
//!
//! | sent | limit | kept |
//! |---|---|---|
//! | the request of `gang.all_gather` | twice `max_message`, and 64 KiB | |
//! | any other request | 64 KiB | |
//! | `gang`, also of a token and a caller | 1 to 128 bytes, no control characters | while the gang is known |
//! | `rank`, `world_size` | `max_world` ranks | |
//! | `share` | below the number of shares, which is at most `max_world` | with the rank |
//! | `info`: `address`, `device`, `host` | 256 bytes each | with the rank |
//! | `token` | its checksum, its gang's name, generations below 2^53 or reached in its space | while the rank joins |
//! | `attempt`, `plan` | 32 and 64 hexadecimal digits | with the rank; with the generation |
//! | `failure` | its first 512 characters | as the reason of the next generation |
//! | `message` of an `all_gather` | `max_message`; of one round `max_gathered`; of all gangs `max_held`, of one tenant's `held_per_tenant` | until the next round has opened |
//! | `message` of a barrier | empty | |
//! | `round` | the next one, or the last one again | a number |
//! | `position` | not before the last one of the rank | a number |
//! | `timeout_ms`, `poll_ms` | cut to 30 days and `max_poll` | while the call waits |
//! | gangs | `max_gangs`; of one tenant `gangs_per_tenant` | a few words and `members` each |
//! | processes that ended | the last 8 of each rank; of all gangs of a tenant 8 times `ranks_per_tenant` | until there are more |
//! | ranks of all gangs | `max_members`; of one tenant `ranks_per_tenant` | 1 KiB at most each |
//!
//! Lower-case names are the fields of [`RegistryOptions`](super::RegistryOptions).

use super::wire::Refusal;

/// Longest name of a gang, in bytes.
const NAME: usize = 128;
/// Longest name of a space, in bytes: `certificate:` and a tenant's name.
const SPACE: usize = 140;
/// Longest text of a member's information, in bytes.
pub(super) const INFO: usize = 256;
/// Bytes of a rank in an answer that lists all of them.
pub(super) const ENTRY: usize = 1 << 10;
/// Characters of a failure that are kept.
pub(super) const FAILURE: usize = 512;
/// Longest request without a message, and room around a message, in bytes.
const REQUEST: u64 = 64 << 10;
/// Characters of a name that an error repeats.
const SHOWN: usize = 64;

/// The longest request of `action`, in bytes, where a message has at most `max_message`.
pub(super) fn request(action: &str, max_message: u64) -> u64 {
    match action {
        "gang.all_gather" => max_message.saturating_mul(2).saturating_add(REQUEST),
        _ => REQUEST,
    }
}

/// The space before the name of a gang; none if there are no tenants, and in the common space.
pub(super) fn space(name: &str) -> Option<&str> {
    name.split_once('/').map(|(space, _)| space)
}

/// Checks that `name` is valid for a gang, perhaps with the prefix of a space.
pub(super) fn name(name: &str) -> Result<(), Refusal> {
    let fits = |name: &str| (1..=NAME).contains(&name.len());
    let scoped = || name.split_once('/').is_some_and(|(space, own)| space.len() <= SPACE && fits(own));
    if (fits(name) || scoped()) && !name.chars().any(char::is_control) {
        return Ok(());
    }
    let shown: String = name.chars().take(SHOWN).collect();
    let problem =
        format!("{shown:?} ({} bytes) is no name for a gang: 1 to {NAME} bytes, no control characters", name.len());
    Err(Refusal::Config { option: "gang".into(), problem })
}
