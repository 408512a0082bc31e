//! A ticket from untrusted bytes: never accepted unless signed. Any accepted ticket round-trips, and is refused after a flip of
//! one bit.
#![no_main]

use std::time::{Duration, UNIX_EPOCH};

use bowstring::flight::request::MAX_BYTES;
use bowstring::flight::ticket::{Denied, Ticket};
use libfuzzer_sys::fuzz_target;

const KEY: &[u8] = b"a key that the fuzzer does not sign with";

fuzz_target!(|data: &[u8]| {
    assert!(Ticket::verify(data, KEY, UNIX_EPOCH).is_err(), "forged");
    let Ok(ticket) = serde_json::from_slice::<Ticket>(data) else { return };
    let signed = ticket.sign(KEY);
    let read = Ticket::verify(&signed, KEY, UNIX_EPOCH);
    if signed.len() > MAX_BYTES {
        assert_eq!(read, Err(Denied::Malformed));
        return;
    }
    let read = read.expect("what was signed is read");
    assert_eq!((&read.tenant, read.expires, read.fingerprint), (&ticket.tenant, ticket.expires, ticket.fingerprint));
    assert_eq!(
        (&read.asked.dataset, read.asked.rank, &read.asked.gang),
        (&ticket.asked.dataset, ticket.asked.rank, &ticket.asked.gang)
    );
    if let Some(later) = UNIX_EPOCH.checked_add(Duration::from_secs(ticket.expires.saturating_add(1)))
        && ticket.expires < u64::MAX
    {
        assert_eq!(Ticket::verify(&signed, KEY, later), Err(Denied::Expired));
    }
    let bit = data.iter().fold(0_usize, |sum, byte| sum.wrapping_mul(31) ^ usize::from(*byte)) % (signed.len() * 8);
    let mut flipped = signed;
    flipped[bit / 8] ^= 1 << (bit % 8);
    assert!(Ticket::verify(&flipped, KEY, UNIX_EPOCH).is_err(), "bit {bit}");
});
