//! Whether an answer of today is one that a former client understands: what it reads is there, with the same meaning.

use serde_json::Value;

/// Keys whose values are each server's own, or free to change; of them the kind of the value counts.
const FREE: [&str; 14] = [
    "bytes",
    "descriptor",
    "expires",
    "host",
    "lease_ms",
    "number",
    "problem",
    "schema",
    "server",
    "socket",
    "tenant",
    "time",
    "version",
    "why",
];
/// Documents in which former clients refuse keys that they do not know.
const STRICT: [&str; 8] = ["token", "resume", "acknowledged", "members", "present", "spec", "reads", "state"];

/// What of `then` is not in `now`, by place.
pub(super) fn changes(then: &Value, now: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare(then, now, "", &mut found);
    found
}

/// As [`changes`], where the values are of the moment: keys and kinds count.
pub(super) fn changes_of_form(then: &Value, now: &Value) -> Vec<String> {
    changes(then, now).into_iter().filter(|change| !change.contains(" has another value")).collect()
}

fn compare(then: &Value, now: &Value, at: &str, found: &mut Vec<String>) {
    let key = at.rsplit('.').next().unwrap_or_default();
    match (then, now) {
        // It was optional.
        (Value::Null, _) => {}
        (Value::Object(then), Value::Object(now)) => {
            for (key, value) in then {
                match now.get(key) {
                    Some(now) => compare(value, now, &format!("{at}.{key}"), found),
                    // A client takes what is absent for null.
                    None if value.is_null() => {}
                    None => found.push(format!("{at}.{key} is gone")),
                }
            }
            if STRICT.contains(&key) {
                let new = now.keys().filter(|key| !then.contains_key(*key));
                found.extend(new.map(|key| format!("{at}.{key} is new, and a former client refuses it")));
            }
        }
        (Value::Array(then), Value::Array(now)) => {
            if then.len() != now.len() {
                found.push(format!("{at} has another value: {} entries, {} before", now.len(), then.len()));
            }
            let key = at.to_owned();
            then.iter().zip(now).for_each(|(then, now)| compare(then, now, &key, found));
        }
        _ if std::mem::discriminant(then) != std::mem::discriminant(now) => {
            found.push(format!("{at} is of another kind: {now}, {then} before"));
        }
        _ if then != now && !FREE.contains(&key) => found.push(format!("{at} has another value: {now}, {then} before")),
        _ => {}
    }
}

/// All versions of `value` in which one key has another name, by the place of the key.
pub(super) fn renamed(value: &Value) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                if !inner.is_null() {
                    let mut changed = map.clone();
                    changed.remove(key);
                    changed.insert(format!("{key}_"), inner.clone());
                    all.push((key.clone(), Value::Object(changed)));
                }
                for (place, inner) in renamed(inner) {
                    let mut changed = map.clone();
                    changed.insert(key.clone(), inner);
                    all.push((format!("{key}.{place}"), Value::Object(changed)));
                }
            }
        }
        Value::Array(list) => {
            for (number, inner) in list.iter().enumerate() {
                for (place, inner) in renamed(inner) {
                    let mut changed = list.clone();
                    changed[number] = inner;
                    all.push((format!("{number}.{place}"), Value::Array(changed)));
                }
            }
        }
        _ => {}
    }
    all
}
