//! Files that get other names, or go, while saves of theirs wait for their upload.

use super::*;

#[test]
fn a_file_that_is_moved_as_its_upload_begins_is_uploaded_to_its_new_address() {
    let rig = Rig::new();
    let files = rig.files(true);
    for number in 0..100_u32 {
        save(&files, "s3://bucket/.tmp", &number.to_le_bytes(), Upload::Background).unwrap();
        files.rename("s3://bucket/.tmp", "s3://bucket/x").unwrap();
        files.flush().unwrap();
        assert_eq!((rig.stored("x").as_deref(), rig.stored(".tmp")), (Some(&number.to_le_bytes()[..]), None));
    }
}

#[test]
fn a_moved_file_takes_what_it_was_to_replace_with_it() {
    let rig = Rig::new();
    let files = rig.files(true);
    save(&files, "s3://bucket/x", b"old", Upload::Wait).unwrap();
    rig.save_waiting(&files, "s3://bucket/x", b"new");
    files.rename("s3://bucket/x", "s3://bucket/y").unwrap();
    files.flush().unwrap();
    assert_eq!((rig.stored("x"), rig.stored("y").as_deref()), (None, Some(&b"new"[..])));
}

#[test]
fn a_moved_file_never_replaces_what_was_saved_elsewhere_at_its_new_address_later() {
    for was in [false, true] {
        let rig = Rig::new();
        let files = rig.files(true);
        if was {
            save(&rig.files(false), "s3://bucket/x", b"before", Upload::Wait).unwrap();
        }
        rig.save_waiting(&files, "s3://bucket/x.tmp", b"older");
        files.rename("s3://bucket/x.tmp", "s3://bucket/x").unwrap();
        save(&rig.files(false), "s3://bucket/x", b"newer", Upload::Wait).unwrap();
        rig.assert_both_are_kept(&files, b"older");
    }
}

#[test]
fn a_file_whose_upload_has_arrived_without_an_answer_is_moved() {
    let rig = Rig::new();
    let files = rig.files(true);
    rig.save_waiting(&files, "s3://bucket/x", b"saved");
    // As if it had come to the store, and its process had not heard of that.
    save(&rig.files(false), "s3://bucket/x", b"saved", Upload::Wait).unwrap();
    files.rename("s3://bucket/x", "s3://bucket/y").unwrap();
    files.flush().unwrap();
    assert_eq!((rig.stored("x"), rig.stored("y").as_deref()), (None, Some(&b"saved"[..])));
}

#[test]
fn what_waits_for_its_upload_stays_the_last_version_if_its_move_or_removal_fails_midway() {
    let rig = Rig::new();
    let files = rig.files(true);
    for is_move in [true, false] {
        save(&files, "s3://bucket/x", b"old", Upload::Wait).unwrap();
        rig.save_waiting(&files, "s3://bucket/x", b"new");
        let change = || match is_move {
            true => files.rename("s3://bucket/x", "s3://bucket/y"),
            false => files.remove("s3://bucket/x"),
        };
        rig.store.keep(true);
        for _ in 0..2 {
            assert!(matches!(change(), Err(Error::Store { .. })));
            assert_eq!(read(&files, "s3://bucket/x").unwrap(), b"new");
        }
        rig.store.keep(false);
        change().unwrap();
        files.flush().unwrap();
        assert_eq!((rig.stored("x"), rig.stored("y").as_deref()), (None, Some(&b"new"[..])));
    }
}

#[test]
fn a_moved_file_is_what_a_killed_process_has_put_last() {
    for arrived in [true, false] {
        let rig = Rig::new();
        let files = rig.files(true);
        save(&files, "s3://bucket/x", b"before", Upload::Wait).unwrap();
        rig.save_waiting(&files, "s3://bucket/x", b"older");
        rig.save_killed(&files, "s3://bucket/x", b"newer", arrived);
        files.rename("s3://bucket/x", "s3://bucket/y").unwrap();
        files.flush().unwrap();
        let expected = if arrived { "newer" } else { "older" };
        assert_eq!((rig.stored("x"), rig.stored("y").as_deref()), (None, Some(expected.as_bytes())));
    }
}

#[test]
fn a_file_gets_another_name_wherever_it_is() {
    let rig = Rig::new();
    let files = rig.files(true);
    for (upload, hold) in [(Upload::Wait, false), (Upload::Background, true)] {
        // Behind one that is on its way, the upload of the others is not begun.
        rig.store.hold(hold);
        save(&files, "s3://bucket/first", b"first", upload).unwrap();
        save(&files, "s3://bucket/d/.tmp", b"new", upload).unwrap();
        files.rename("s3://bucket/d/.tmp", "s3://bucket/d/x").unwrap();
        assert_eq!(read(&files, "s3://bucket/d/x").unwrap(), b"new");
        assert!(matches!(files.open("s3://bucket/d/.tmp"), Err(Error::NotFound { .. })));
        rig.store.hold(false);
        files.flush().unwrap();
        assert_eq!((rig.stored("d/x").as_deref(), rig.stored("d/.tmp")), (Some(&b"new"[..]), None));
        rig.store.hold(hold);
        save(&files, "s3://bucket/first", b"first", upload).unwrap();
        save(&files, "s3://bucket/d/x", b"newer", upload).unwrap();
        files.remove("s3://bucket/d/x").unwrap();
        assert!(matches!(files.remove("s3://bucket/d/x"), Err(Error::NotFound { .. })));
        rig.store.hold(false);
        wait_until(|| {
            files.flush().unwrap();
            empty(&rig.cache().join("saved"))
        });
        assert_eq!(rig.stored("d/x"), None);
    }
    let missing = files.rename("s3://bucket/none", "s3://bucket/x").unwrap_err();
    assert!(matches!(missing, Error::NotFound { .. }), "{missing}");
    let here = rig.root.path().join("a").to_str().unwrap().to_owned();
    assert!(matches!(files.rename(&here, "s3://bucket/x"), Err(Error::Unsupported { .. })));
    files.make_directory(&here).unwrap();
    let (old, new) = (format!("{here}/old"), format!("{here}/new"));
    save(&files, &old, b"here", Upload::Background).unwrap();
    files.rename(&old, &new).unwrap();
    assert_eq!(read(&files, &new).unwrap(), b"here");
    files.remove(&new).unwrap();
    assert!(matches!(files.remove(&new), Err(Error::NotFound { .. })));
}

#[test]
fn a_save_that_is_closed_as_another_one_goes_is_not_removed_with_it() {
    let rig = Rig::new();
    let files = rig.files(true);
    for is_move in [true, false] {
        save(&files, "s3://bucket/x", b"old", Upload::Wait).unwrap();
        save(&files, "s3://bucket/y", b"moved", Upload::Wait).unwrap();
        rig.save_waiting(&files, "s3://bucket/x", b"waiting");
        rig.store.pause(true);
        std::thread::scope(|scope| {
            let change = scope.spawn(|| match is_move {
                true => files.rename("s3://bucket/y", "s3://bucket/x"),
                false => files.remove("s3://bucket/x"),
            });
            wait_until(|| rig.store.paused());
            save(&files, "s3://bucket/x", b"last", Upload::Background).unwrap();
            rig.store.pause(false);
            change.join().unwrap().unwrap();
        });
        files.flush().unwrap();
        assert_eq!(rig.stored("x").as_deref(), Some(&b"last"[..]), "{is_move}");
    }
}
