//! Limits of a dataset's images, under any name that a client uses for the column.

use serde_json::{Map, Value};

use crate::codec::column_is_meant;
use crate::codec::image::Limits;

/// Returns the limits for images of the columns that a client names `asked`: those that the dataset gives for that name. If it gives
/// them for other names that `asked` may cover, the strictest of all.
pub(crate) fn limits_for(own: &Map<String, Value>, asked: &str) -> Option<Value> {
    let limits = |image: &Value| image.get("limits").filter(|limits| !limits.is_null()).cloned();
    if let Some(image) = own.get(asked) {
        return limits(image);
    }
    let all: Vec<(&String, Value)> = own.iter().filter_map(|(name, image)| Some((name, limits(image)?))).collect();
    if all.is_empty() {
        return None;
    }
    let read = |value: &Value| serde_json::from_value::<Limits>(value.clone()).unwrap_or_default();
    // Limits of a glob or a prefix apply to this column if it matches; otherwise any may apply. Columns without limits have the
    // defaults.
    let meant = all.iter().filter(|(name, _)| column_is_meant(name, asked)).map(|(_, value)| read(value));
    let first = meant.reduce(strictest);
    let is_glob = asked.contains(['*', '?']);
    let strict = match first {
        Some(meant) if !is_glob => meant,
        _ => all.iter().map(|(_, value)| read(value)).fold(Limits::default(), strictest),
    };
    serde_json::to_value(strict).ok()
}

/// Returns the smaller of each limit.
fn strictest(one: Limits, other: Limits) -> Limits {
    Limits {
        max_pixels: one.max_pixels.min(other.max_pixels),
        max_side: one.max_side.min(other.max_side),
        max_bytes: one.max_bytes.min(other.max_bytes),
        max_scans: one.max_scans.min(other.max_scans),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn limits_of_images_hold_by_whatever_name_a_client_calls_them() {
        let own = json!({
            "*": {"limits": {"max_pixels": 1000}},
            "photos.*": {"limits": {"max_pixels": 500, "max_side": 50}},
            "thumbnail": {"size": 8, "limits": {"max_pixels": 64}}
        });
        let of = |own: &Value, asked: &str| {
            let limits = limits_for(own.as_object().unwrap(), asked).unwrap();
            let limits: Limits = serde_json::from_value(limits).unwrap();
            (limits.max_pixels, limits.max_side)
        };
        let usual = Limits::default();
        assert_eq!(of(&own, "face"), (1000, usual.max_side));
        assert_eq!(of(&own, "photos.front"), (500, 50));
        assert_eq!(of(&own, "thumbnail"), (64, usual.max_side));
        assert_eq!(of(&own, "thumb*"), (64, 50), "it may mean any of them");
        assert_eq!(of(&json!({"*": {"limits": {"max_pixels": 1000}}}), "*"), (1000, usual.max_side));
        // Wider limits of one column do not apply to another.
        let wide = json!({"scan": {"limits": {"max_pixels": 1_u64 << 40}}});
        assert_eq!(of(&wide, "face").0, usual.max_pixels);
        assert_eq!(of(&wide, "scan").0, 1 << 40);
        assert_eq!(of(&wide, "*").0, usual.max_pixels);
    }
}
