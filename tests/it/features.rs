//! Columns with special types of other libraries, as Spark 4.3 and `datasets` write them: `fixtures/features`.

use arrow::array::Array;
use bowstring::codec::ColumnOptions;
use bowstring::tensor::{Batch, Value};
use bowstring::{Error, Loader, LoaderOptions};

use crate::support::fixture;

fn options(name: &str, columns: &str) -> LoaderOptions {
    let columns: ColumnOptions = serde_json::from_str(columns).unwrap();
    let url = fixture("features").join(name);
    LoaderOptions { shuffle: false, columns, ..LoaderOptions::new(url.to_str().unwrap(), 10) }
}

fn first(name: &str, columns: &str) -> bowstring::Result<Batch> {
    Ok(Loader::open(options(name, columns))?.next()?.unwrap())
}

fn names(batch: &Batch) -> Vec<String> {
    batch.columns().iter().map(|(name, _)| name.to_string()).collect()
}

fn floats(batch: &Batch, name: &str) -> Vec<f64> {
    batch.tensor(name).unwrap().as_slice::<f64>().unwrap().to_vec()
}

#[test]
fn vectors_of_spark_are_a_matrix() {
    for name in ["vectors_dense.parquet", "vectors_assembled.parquet"] {
        let batch = first(name, "{}").unwrap();
        assert_eq!(names(&batch), ["id", "features"], "{name}");
        assert_eq!(batch.tensor("features").unwrap().shape(), [10, 3]);
        let expected: Vec<f64> =
            (0..10).flat_map(|row| [f64::from(row), f64::from(row) / 2.0, -f64::from(row)]).collect();
        assert_eq!(floats(&batch, "features"), expected, "{name}");
    }
    let batch = first("vectors_mixed.parquet", r#"{"columns": ["features"]}"#).unwrap();
    assert_eq!(floats(&batch, "features")[..9], [0.0, 0.0, 0.0, 1.0, 0.0, -1.0, 0.0, 2.0, 0.0]);
    let batch = first("vectors_sparse.parquet", r#"{"cast": {"features": "float32"}}"#).unwrap();
    let tensor = batch.tensor("features").unwrap();
    assert_eq!(tensor.shape(), [10, 1000]);
    let values = tensor.as_slice::<f32>().unwrap();
    for row in 0..10 {
        let found: Vec<(usize, f32)> =
            values[row * 1000..][..1000].iter().copied().enumerate().filter(|(_, value)| *value != 0.0).collect();
        let expected = [(row, 1.0), (500 + row, row as f32 / 4.0)];
        assert_eq!(found, expected.into_iter().filter(|(_, value)| *value != 0.0).collect::<Vec<_>>());
    }
}

#[test]
fn vectors_of_spark_are_rows_of_a_sparse_matrix_on_request() {
    let csr = r#"{"lists": {"features": "csr"}}"#;
    let batch = first("vectors_sparse.parquet", csr).unwrap();
    assert_eq!(names(&batch), ["id", "features__values", "features__offsets", "features__indices"]);
    let numbers = |name: &str| batch.tensor(name).unwrap().as_slice::<i64>().unwrap().to_vec();
    assert_eq!(numbers("features__offsets"), (0..=10).map(|row| row * 2).collect::<Vec<i64>>());
    let indices = batch.tensor("features__indices").unwrap().as_slice::<i32>().unwrap().to_vec();
    assert_eq!(indices, (0..10).flat_map(|row| [row, 500 + row]).collect::<Vec<i32>>());
    assert_eq!(floats(&batch, "features__values")[..4], [1.0, 0.0, 1.0, 0.25]);
    // Dense vectors have all indices; of different lengths they do not form a matrix, but still rows.
    let batch = first("vectors_uneven.parquet", csr).unwrap();
    assert_eq!(batch.tensor("features__indices").unwrap().as_slice::<i32>().unwrap()[..6], [0, 1, 2, 0, 1, 2]);
    let loader = Loader::open(options("vectors_sparse.parquet", csr)).unwrap();
    assert_eq!(loader.schema().to_string(), "id int64 [B]; features float64 [B, sparse]");
}

#[test]
fn a_bad_vector_is_reported_with_its_row() {
    let mut loader = Loader::open(options("vectors_uneven.parquet", "{}")).unwrap();
    loader.next().unwrap();
    let error = loader.next().unwrap_err();
    let place = error.place().unwrap();
    assert!(matches!(error, Error::Corrupt { .. }) && error.to_string().contains("no vector of 3 numbers"), "{error}");
    assert_eq!((place.column.as_deref(), place.row), (Some("features"), Some(13)));
    assert!(first("vectors_uneven.parquet", r#"{"lists": {"features": {"vector": 4}}}"#).is_err());
    // A null vector is known from the footers.
    let error = first("vectors_null.parquet", "{}").unwrap_err();
    assert!(matches!(error, Error::Nulls { .. }) && error.to_string().contains("features (1 null"), "{error}");
    let batch = first("vectors_null.parquet", r#"{"nulls": {"fill": -1}}"#).unwrap();
    assert_eq!(floats(&batch, "features")[12..18], [6.0, 1.0, -1.0, -1.0, 8.0, 1.0]);
    let batch = first("vectors_null.parquet", r#"{"nulls": "mask", "lists": {"features": "csr"}}"#).unwrap();
    let expected = ["id", "id__valid", "features__values", "features__offsets", "features__valid", "features__indices"];
    assert_eq!(names(&batch)[..6], expected);
    assert_eq!(batch.tensor("features__valid").unwrap().bytes()[6..9], [1, 0, 1]);
    for wrong in [r#"{"features": {"padded": {"length": 3}}}"#, r#"{"features": {"vector": 0}}"#, r#"{"id": "csr"}"#] {
        let error = first("vectors_dense.parquet", &format!(r#"{{"lists": {wrong}}}"#)).unwrap_err();
        assert!(matches!(error, Error::Config { option: "lists", .. }), "{error}");
    }
}

#[test]
fn named_members_of_a_vector_are_its_stored_columns() {
    let batch = first("vectors_dense.parquet", r#"{"columns": ["features.values", "id"]}"#).unwrap();
    assert_eq!(names(&batch), ["features.values__values", "features.values__offsets", "id"]);
    let mut raw = options("vectors_dense.parquet", r#"{"nulls": "mask"}"#);
    raw.decode = false;
    assert_eq!(Loader::open(raw).unwrap().schema().fields().len(), 5);
}

#[test]
fn unsupported_types_are_named_in_the_error() {
    for (file, column, word) in [("variant.parquet", "v", "variant"), ("matrices.parquet", "matrix", "MatrixUDT")] {
        let error = first(file, "{}").unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Unsupported { .. }), "{text}");
        assert!(text.contains(word) && text.contains(&format!("column {column} ")), "{text}");
        assert_eq!(names(&first(file, &format!(r#"{{"exclude": ["{column}"]}}"#)).unwrap())[0], "id");
    }
}

#[test]
fn features_of_hugging_face_are_understood() {
    let batch =
        first("huggingface.parquet", r#"{"images": {"image": {}}, "columns": ["image", "label", "text"]}"#).unwrap();
    assert_eq!(names(&batch), ["image", "label", "text"]);
    let pixels = batch.tensor("image").unwrap();
    assert_eq!(pixels.shape(), [10, 3, 5, 4]);
    assert!(
        pixels.bytes().chunks(60).enumerate().all(|(row, image)| image.iter().all(|pixel| usize::from(*pixel) == row))
    );
    let batch = first("huggingface.parquet", r#"{"images": {"image": {"size": [2, 2]}}}"#).unwrap();
    assert_eq!(batch.tensor("image").unwrap().shape(), [10, 3, 2, 2]);
    // Without options the bytes are delivered; their paths are sometimes null.
    let loader = Loader::open(options("huggingface.parquet", "{}")).unwrap();
    let expected = "image arrow LargeBinary [B]; label int64 [B]; text arrow LargeUtf8 [B]";
    assert_eq!(loader.schema().to_string(), expected);
    let classes = loader.schema().get("label").unwrap().classes.clone().unwrap();
    assert_eq!(classes.iter().map(|name| &**name).collect::<Vec<_>>(), ["cat", "dog", "fox"]);
    let batch = first("huggingface.parquet", r#"{"columns": ["image.path"], "nulls": "mask"}"#).unwrap();
    assert!(matches!(batch.get("image.path"), Some(Value::Arrow(array)) if array.null_count() == 5));
    let before = r#"{"images": {"image": {"size": [5, 4]}}, "exclude": ["image.path"]}"#;
    assert_eq!(names(&first("huggingface.parquet", before).unwrap())[0], "image.bytes");
}

#[test]
fn columns_come_in_the_requested_order() {
    let columns =
        r#"{"columns": ["text", "label", "image"], "row_id": true, "nulls": "mask", "images": {"image": {}}}"#;
    let batch = first("huggingface.parquet", columns).unwrap();
    let expected = ["text", "text__valid", "label", "label__valid", "image", "image__valid", "_row_id"];
    assert_eq!(names(&batch), expected);
    let fields = Loader::open(options("huggingface.parquet", columns)).unwrap().schema().fields().to_vec();
    assert_eq!(
        fields.iter().flat_map(|field| field.names()).map(|name| name.to_string()).collect::<Vec<_>>(),
        expected[..7]
    );
}
