//! The tuple form of a filter, as pyarrow and Petastorm take it: lists of `[column, op, value]`.

use serde_json::Value;

use super::node::{Literal, MAX_TERMS, Name, Node, OPTION, Op};
use crate::error::{Error, Result};

/// Reads a tuple, a list of tuples (and), or a list of lists of tuples (or of ands).
pub(super) fn read(value: &Value) -> Result<Node> {
    let mut terms = 0;
    let Value::Array(outer) = value else {
        return Err(Error::config(
            OPTION,
            format!("expected a list of [column, op, value] tuples, not {}", kind(value)),
        ));
    };
    if is_tuple(outer) {
        return tuple(value, "the tuple", &mut terms);
    }
    let is_disjunction = outer.first().and_then(Value::as_array).is_some_and(|first| !is_tuple(first));
    if is_disjunction {
        let alternatives = outer.iter().enumerate().map(|(index, inner)| {
            let place = format!("alternative {}", index + 1);
            let Value::Array(tuples) = inner else {
                let problem = format!("{place}: expected a list of [column, op, value] tuples, not {}", kind(inner));
                return Err(Error::config(OPTION, problem));
            };
            all(tuples, &format!("{place}, "), &mut terms)
        });
        return Ok(Node::any(alternatives.collect::<Result<_>>()?));
    }
    all(outer, "", &mut terms)
}

fn is_tuple(values: &[Value]) -> bool {
    values.first().is_some_and(Value::is_string)
}

fn all(tuples: &[Value], place: &str, terms: &mut usize) -> Result<Node> {
    if tuples.is_empty() {
        return Err(Error::config(
            OPTION,
            format!("{place}an empty list of tuples; leave the filter out to select all"),
        ));
    }
    let nodes =
        tuples.iter().enumerate().map(|(index, value)| tuple(value, &format!("{place}tuple {}", index + 1), terms));
    Ok(Node::all(nodes.collect::<Result<_>>()?))
}

fn tuple(value: &Value, place: &str, terms: &mut usize) -> Result<Node> {
    let wrong = |problem: String| Error::config(OPTION, format!("{place}: {problem}"));
    let Some([column, op, value]) = value.as_array().map(Vec::as_slice) else {
        return Err(wrong("expected three members: [column, op, value]".to_owned()));
    };
    let Some(column) = column.as_str() else {
        return Err(wrong(format!("the first member is the column's name, not {}", kind(column))));
    };
    let column = Name::Dotted(column.to_owned());
    let Some(op) = op.as_str() else {
        return Err(wrong(format!("the second member is the operator, not {}", kind(op))));
    };
    *terms += value.as_array().map_or(1, Vec::len);
    if *terms > MAX_TERMS {
        return Err(wrong(format!("more than {MAX_TERMS} terms in one filter")));
    }
    let words = op.split_whitespace().collect::<Vec<_>>().join(" ").to_ascii_lowercase();
    let op = match words.as_str() {
        "in" | "not in" => {
            let Some(members) = value.as_array() else {
                return Err(wrong(format!("'{words}' takes a list of values, not {}", kind(value))));
            };
            if members.is_empty() {
                return Err(wrong(format!("the list of '{words}' is empty")));
            }
            let values = members.iter().map(|member| literal(member).map_err(&wrong)).collect::<Result<_>>()?;
            return Ok(Node::In { column, values, negated: words == "not in" });
        }
        "overlaps" => {
            let members = value.as_array().filter(|members| !members.is_empty());
            let members =
                members.ok_or_else(|| wrong("'overlaps' takes a list of values that is not empty".to_owned()))?;
            let values = members.iter().map(|member| literal(member).map_err(&wrong)).collect::<Result<_>>()?;
            return Ok(Node::Overlaps { column, values });
        }
        "split" => {
            let bounds: Vec<f64> = value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
            return match bounds[..] {
                [low, high] if 0.0 <= low && low <= high && high <= 1.0 => Ok(Node::Split { column, low, high }),
                _ => Err(wrong("'split' takes [low, high], from 0 to 1".to_owned())),
            };
        }
        "=" | "==" => Op::Eq,
        "!=" | "<>" => Op::Ne,
        "<" => Op::Lt,
        "<=" => Op::Le,
        ">" => Op::Gt,
        ">=" => Op::Ge,
        _ => {
            return Err(wrong(format!(
                "unknown operator {op:?}; use =, !=, <, <=, >, >=, in, not in, overlaps, split"
            )));
        }
    };
    Ok(Node::Compare { column, op, value: literal(value).map_err(wrong)? })
}

/// A JSON scalar as a literal, or the reason why it is none.
fn literal(value: &Value) -> Result<Literal, String> {
    match value {
        Value::Bool(value) => Ok(Literal::Bool(*value)),
        Value::String(text) => Ok(Literal::Text(text.clone())),
        Value::Number(number) => {
            let whole = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
            match (whole, number.as_f64()) {
                (Some(value), _) => Ok(Literal::Int(value)),
                (None, Some(value)) if value.is_finite() => Ok(Literal::Float(value)),
                _ => Err(format!("the number {number} is too large")),
            }
        }
        Value::Null => Err("nothing equals null; write the filter as text: x is null".to_owned()),
        _ => Err(format!("the value is a number, string or boolean, not {}", kind(value))),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::dataset::filter::Expr;

    #[test]
    fn tuples_and_text_make_the_same_expression() {
        for (tuples, text) in [
            (json!(["a", "=", 3]), "a = 3"),
            (json!([["a", "==", 3]]), "a = 3"),
            (json!([["a", ">=", 1.5], ["b", "not in", ["x", "y"]]]), "a >= 1.5 and b not in ('x', 'y')"),
            (json!([[["a", "<", -1], ["b", "!=", true]], [["c.d", "IN", [1]]]]), "a < -1 and b != true or c.d in (1)"),
            (json!([[["a", "<>", u64::MAX]]]), "a != 18446744073709551615"),
            (json!(["", "=", 1]), "\"\" = 1"),
            (json!(["a", ">", 2f64.powi(62)]), "a > 4611686018427387904.0"),
            (json!(["a b", "<=", "it's"]), "\"a b\" <= 'it''s'"),
        ] {
            let expr = Expr::from_dnf(&tuples).unwrap();
            assert_eq!(expr.to_string(), text);
            assert_eq!(Expr::parse(text).unwrap(), expr);
        }
    }

    #[test]
    fn errors_name_the_tuple() {
        for (tuples, part) in [
            (json!(3), "not a number"),
            (json!([]), "empty list"),
            (json!([[]]), "alternative 1, an empty list"),
            (json!([["a", "=", 1], ["b", "="]]), "tuple 2: expected three"),
            (json!([[["a", "=", 1]], [["b", "like", 1]]]), "alternative 2, tuple 1: unknown operator \"like\""),
            (json!([[["a", "=", 1]], 7]), "alternative 2: expected a list"),
            (json!(["a", "=", null]), "is null"),
            (json!(["a", "in", "x"]), "takes a list"),
            (json!(["a", "in", []]), "is empty"),
            (json!(["a", "in", [[1]]]), "not a list"),
            (json!([["a", "=", 1], [7, "=", 1]]), "column's name"),
            (json!([["a", 1, 1]]), "operator"),
        ] {
            let error = Expr::from_dnf(&tuples).unwrap_err().to_string();
            assert!(error.starts_with("option filter: ") && error.contains(part), "{tuples}: {error}");
        }
    }
}
