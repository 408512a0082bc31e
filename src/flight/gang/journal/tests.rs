//! Journals that were torn, damaged, or written by other versions.

use super::*;

fn opened(path: &Path) -> Result<(Journal, Vec<Record>)> {
    Journal::open(path, Lock::take(&beside(path), "test")?)
}

fn records() -> Vec<Record> {
    let record = |rank| MemberRecord {
        rank,
        attempt: u128::MAX - u128::from(rank),
        share: Share { rank, of: 2 },
        info: MemberInfo { address: "10.0.0.1:1".into(), ..MemberInfo::default() },
    };
    let at = Position { epoch: 1, step: 7 };
    vec![
        Record::Formed {
            gang: "a".into(),
            generation: 1,
            at: None,
            acknowledged: None,
            members: vec![record(0), record(1)],
            reads: None,
        },
        Record::Acked { gang: "a".into(), generation: 1, rank: 1, position: at },
        Record::Opened { gang: "a".into(), generation: 1, round: 3, messages: vec!["00ff".into(), String::new()] },
        Record::Raised {
            gang: "a".into(),
            generation: 2,
            acknowledged: Some(at),
            why: "rank 1 lost".into(),
            reads: None,
        },
    ]
}

#[test]
fn a_tail_torn_at_any_byte_keeps_all_whole_records_and_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let whole = home.path().join("whole");
    let (mut journal, before) = opened(&whole).unwrap();
    assert!(before.is_empty());
    assert!(matches!(opened(&whole), Err(Error::Closed { .. })), "one at a time");
    let mut ends = vec![MAGIC.len()];
    for record in records() {
        journal.append(std::slice::from_ref(&record)).unwrap();
        ends.push(journal.bytes as usize);
    }
    let bytes = std::fs::read(&whole).unwrap();
    assert_eq!(ends.last(), Some(&bytes.len()));
    let torn = home.path().join("torn");
    for length in 0..=bytes.len() {
        std::fs::write(&torn, &bytes[..length]).unwrap();
        let whole_ones = ends.iter().filter(|end| **end <= length).count().saturating_sub(1);
        let (mut journal, found) = opened(&torn).unwrap();
        assert_eq!(found, records()[..whole_ones], "cut at {length}");
        let next = Record::Floor { generation: 9, space: None };
        journal.append(std::slice::from_ref(&next)).unwrap();
        drop(journal);
        let found = opened(&torn).unwrap().1;
        assert_eq!(found.last(), Some(&next), "cut at {length}");
        assert_eq!(found.len(), whole_ones + 1, "cut at {length}");
    }
}

/// Expects a journal of `bytes` to be refused and left unchanged; returns the error.
fn refused(path: &Path, bytes: &[u8]) -> Error {
    std::fs::write(path, bytes).unwrap();
    let error = opened(path).unwrap_err();
    assert!(std::fs::read(path).unwrap() == bytes, "the file was changed: {error}");
    error
}

fn framed(json: &str) -> Vec<u8> {
    let mut bytes = (json.len() as u32).to_le_bytes().to_vec();
    bytes.extend(crc32fast::hash(json.as_bytes()).to_le_bytes());
    bytes.extend(json.as_bytes());
    bytes
}

#[test]
fn damage_is_cut_at_the_very_end_alone() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("j");
    let mut first = records();
    let last = first.split_off(3);
    opened(&path).unwrap().0.append(&first).unwrap();
    let end = std::fs::read(&path).unwrap().len();
    opened(&path).unwrap().0.append(&last).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    for at in MAGIC.len()..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        if at < end {
            let error = refused(&path, &damaged);
            assert!(matches!(error, Error::Corrupt { .. }), "bit at byte {at}: {error}");
            assert!(error.to_string().contains("whole records follow"), "{error}");
        } else {
            std::fs::write(&path, &damaged).unwrap();
            assert_eq!(opened(&path).unwrap().1, first, "bit at byte {at}");
        }
    }
    // Remains of a write that a power cut interrupted, as file systems leave them.
    std::fs::write(&path, [&bytes[..end], &[0; 200]].concat()).unwrap();
    assert_eq!(opened(&path).unwrap().1, first);
    assert_eq!(std::fs::read(&path).unwrap().len(), end);
    assert!(matches!(refused(&path, b"precious things"), Error::Corrupt { .. }));
}

#[test]
fn what_a_newer_version_wrote_is_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("j");
    opened(&path).unwrap().0.append(&records()).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    for unknown in [
        r#"{"record":"elected","gang":"a","generation":9}"#,
        r#"{"record":"floor","generation":9,"of":"all"}"#,
        r#"["another","form"]"#,
    ] {
        for tail in [&b""[..], &b"torn"[..], &framed(r#"{"record":"floor","generation":9}"#)] {
            let error = refused(&path, &[&bytes, &framed(unknown)[..], tail].concat());
            assert!(matches!(error, Error::Unsupported { .. }), "{unknown}: {error}");
            assert!(error.to_string().contains(&format!("byte {}", bytes.len())), "{error}");
        }
    }
    let newer = refused(&path, b"BOWGANG3");
    assert!(matches!(newer, Error::Unsupported { .. }), "{newer}");
    assert!(newer.to_string().contains("form 3 of") && newer.to_string().contains("reads forms 1 to 2"), "{newer}");
    assert!(matches!(refused(&path, b"BOWGANG!"), Error::Corrupt { .. }));
}

#[test]
fn a_journal_of_the_version_before_is_opened_and_rewritten() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("j");
    let record = r#"{"rank":0,"attempt":"00000000000000000000000000000005","share":{"rank":0,"of":1},"info":{"address":"","device":"","host":""}}"#;
    let formed = format!(
        r#"{{"record":"formed","gang":"a","generation":4,"at":null,"acknowledged":null,"members":[{record}]}}"#
    );
    let acked = r#"{"record":"acked","gang":"a","generation":4,"rank":0,"position":{"epoch":1,"step":7}}"#;
    let raised =
        r#"{"record":"raised","gang":"a","generation":5,"acknowledged":{"epoch":1,"step":7},"why":"rank 0 lost"}"#;
    let old = [&OLD_MAGIC[..], &framed(&formed), &framed(acked), &framed(raised), b"torn"].concat();
    std::fs::write(&path, &old).unwrap();
    let (mut journal, found) = opened(&path).unwrap();
    assert!(matches!(
        &found[..],
        [
            Record::Formed { generation: 4, reads: None, .. },
            Record::Acked { .. },
            Record::Raised { generation: 5, acknowledged: Some(Position { epoch: 1, step: 7 }), reads: None, .. },
        ]
    ));
    let more = Record::Floor { generation: 9, space: None };
    journal.append(std::slice::from_ref(&more)).unwrap();
    drop(journal);
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes.starts_with(MAGIC) && !bytes.ends_with(b"torn"), "the version before refuses it");
    assert_eq!(opened(&path).unwrap().1, [found, vec![more]].concat());
    // Damage is no reason to rewrite.
    let mut damaged = old[..old.len() - 4].to_vec();
    damaged[20] ^= 1;
    refused(&path, &damaged);
}

#[cfg(unix)]
#[test]
fn what_makes_a_caller_a_member_is_for_its_owner_alone_unless_he_says_otherwise() {
    use std::os::unix::fs::PermissionsExt as _;

    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("j");
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    let (mut journal, _) = opened(&path).unwrap();
    assert_eq!(mode(), 0o600);
    for rights in [0o640, 0o600] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(rights)).unwrap();
        journal.compact(&records()).unwrap();
        assert_eq!(mode(), rights, "a new file under its name");
    }
}

#[test]
fn compaction_keeps_what_it_is_given_and_appends_after_it() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("j");
    let (mut journal, _) = opened(&path).unwrap();
    while !journal.is_large() {
        journal.append(&records()).unwrap();
    }
    journal.compact(&records()[3..]).unwrap();
    assert!(!journal.is_large());
    journal.append(&records()[..1]).unwrap();
    drop(journal);
    let found = opened(&path).unwrap().1;
    assert_eq!(found, [records()[3].clone(), records()[0].clone()]);
}

#[test]
fn a_journal_that_cannot_be_compacted_goes_on_and_is_compacted_later() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("j");
    let (mut journal, _) = opened(&path).unwrap();
    let fill = |journal: &mut Journal| {
        while !journal.is_large() {
            journal.append(&records()).unwrap();
        }
        std::fs::metadata(&path).unwrap().len()
    };
    let before = fill(&mut journal);
    let in_the_way = home.path().join("j.new");
    std::fs::create_dir(&in_the_way).unwrap();
    journal.compact_if_large(records);
    assert!(!journal.is_large(), "it is not tried again at each record");
    std::fs::remove_dir(&in_the_way).unwrap();
    let after = fill(&mut journal);
    assert!(after >= 2 * before, "{before} {after}");
    journal.compact_if_large(records);
    journal.append(&records()[..1]).unwrap();
    drop(journal);
    assert_eq!(opened(&path).unwrap().1, [records(), records()[..1].to_vec()].concat());
}
