//! A table of a Hive metastore: the call for it, and those for its partitions.

use url::Url;

use super::connect::call;
use super::messages::{self, Refusal};
use super::thrift::Fault;
use crate::error::{Error, Result, Source};
use crate::store::catalog::hive_table::{HiveTable, Partition, Way};
use crate::store::catalog::names;
use crate::store::catalog::table::CatalogTable;
use crate::store::web::{Connection, Options, is_near};

/// The metastore's usual port.
const PORT: u16 = 9083;

/// Most bytes of an answer.
const MOST: usize = 256 << 20;

/// Partitions in one answer. Each repeats the columns of the table.
const AT_ONCE: usize = 1_000;

/// The name of a table, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    host: String,
    port: u16,
    database: String,
    table: String,
}

/// The parts of `name`, such as `hms://host:9083/database.table`.
///
/// # Errors
/// [`Error::Config`] with that form.
fn key(name: &str) -> Result<Key> {
    let is_plain = |url: &Url| {
        url.username().is_empty() && url.password().is_none() && url.query().is_none() && url.fragment().is_none()
    };
    let url = Url::parse(name).ok().filter(is_plain);
    let host = url.as_ref().and_then(Url::host_str).filter(|host| !host.is_empty());
    let (Some(url), Some(host)) = (&url, host) else { return Err(names::HIVE.wrong(name)) };
    // Addresses of version 6 stand in brackets in URLs alone.
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let [database, table] = names::HIVE.parts_of(name, url.path().trim_matches('/'))?;
    Ok(Key { host, port: url.port().unwrap_or(PORT), database, table })
}

/// Looks up the table `name`.
///
/// # Errors
/// [`Error::Config`] for a malformed name, and for settings; [`Error::NotFound`] for a missing table; [`Error::Unsupported`] for what is not
/// read; [`Error::Store`].
pub(in crate::store::catalog) async fn table(name: &str, options: Options<'_>) -> Result<CatalogTable> {
    let key = key(name)?;
    let connection = Connection::new(options)?;
    let (asked, found) = (key.clone(), asking(name, &key, "look up the table"));
    let blocking = connection.clone();
    let table = found(tokio::task::spawn_blocking(move || get_table(&asked, &blocking)).await)?;
    let (content, location) = match table.way(name)? {
        Way::At(content, location) => (content, location),
        Way::Partitions(location) => {
            let (asked, found) = (key.clone(), asking(name, &key, "list the partitions"));
            let partitions = tokio::task::spawn_blocking(move || get_partitions(&asked, &connection));
            (table.partitioned(name, &location, found(partitions.await)?)?, location)
        }
    };
    Ok(CatalogTable::new(content, location, is_near(Some(&key.host))))
}

fn get_table(key: &Key, connection: &Connection) -> Result<HiveTable, Refusal> {
    let ask = |by_request| {
        let message = messages::get_table(&key.database, &key.table, by_request);
        let answer = call(&key.host, key.port, connection, &message).map_err(Fault::Io)?;
        messages::table(answer, MOST, by_request)
    };
    match ask(true) {
        Err(Refusal::Method(_)) => ask(false),
        done => done,
    }
}

/// All partitions of the table: their names, then so many of them at once.
fn get_partitions(key: &Key, connection: &Connection) -> Result<Vec<Partition>, Refusal> {
    let ask = |message: &[u8]| call(&key.host, key.port, connection, message).map_err(Fault::Io);
    let names = ask(&messages::get_partition_names(&key.database, &key.table))?;
    let names = messages::partition_names(names, MOST)?;
    let mut partitions = Vec::new();
    for names in names.chunks(AT_ONCE) {
        let answer = ask(&messages::get_partitions(&key.database, &key.table, names))?;
        partitions.extend(messages::partitions(answer, MOST, names.len())?);
    }
    Ok(partitions)
}

/// What comes of a call to `operation`, for the table `name`.
fn asking<T>(
    name: &str,
    key: &Key,
    operation: &'static str,
) -> impl FnOnce(std::result::Result<Result<T, Refusal>, tokio::task::JoinError>) -> Result<T> + use<T> {
    let (name, url) = (name.to_owned(), format!("hms://{}:{}", key.host, key.port));
    move |done| {
        let failed = |source: Source| Error::Store { operation: format!("{operation} {name}"), url, source };
        let closed = |error: &std::io::Error| {
            matches!(error.kind(), std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset)
        };
        match done.map_err(Into::into) {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(Refusal::Missing(message))) => {
                let hint = if message.is_empty() { message } else { format!("the metastore says {message}") };
                Err(Error::NotFound { what: format!("table {name}"), hint })
            }
            Ok(Err(Refusal::Method(message) | Refusal::Told(message))) => {
                Err(failed(format!("the metastore says {message}").into()))
            }
            Ok(Err(Refusal::Fault(Fault::Io(error)))) if closed(&error) => {
                let what = "it closes the connection; metastores that ask for Kerberos or TLS are not supported";
                Err(failed(format!("{error}: {what}").into()))
            }
            Ok(Err(Refusal::Fault(Fault::Io(error)))) => Err(failed(error.into())),
            Ok(Err(Refusal::Fault(Fault::Odd(what)))) => Err(failed(what.into())),
            Err(error) => Err(failed(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_host_a_database_and_a_table() {
        let is = |host: &str, port, database: &str, table: &str| {
            let (host, database, table) = (host.to_owned(), database.to_owned(), table.to_owned());
            Key { host, port, database, table }
        };
        assert_eq!(key("hms://meta.example:9084/db.t").unwrap(), is("meta.example", 9084, "db", "t"));
        assert_eq!(key("thrift://[::1]/db.t/").unwrap(), is("::1", PORT, "db", "t"));
        for none in [
            "hms://h:1/t",
            "hms://h",
            "hms:///db.t",
            "hms://h/a.b.c",
            "hms://h/a/b.c",
            "hms://u:p@h/a.b",
            "hms://h:x/a.b",
        ] {
            let error = key(none).unwrap_err().to_string();
            assert!(error.contains("hms://host:9083/database.table"), "{none}: {error}");
        }
    }
}
