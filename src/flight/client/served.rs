//! The datasets of a server, by name, for listings.

use arrow_flight::{FlightDescriptor, FlightInfo};
use serde::Deserialize;

use super::address::Address;
use super::connection::{Connection, Failure, Tcp};
use super::receive::{StreamInfo, announced, columns};
use crate::error::{Error, Result};
use crate::flight::request::StreamRequest;
use crate::pipeline::LoaderOptions;
use crate::plan::Share;
use crate::schema::Schema;
use crate::store::caller::Credentials;

/// A dataset of a server's catalogue.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    /// Its name in the catalogue.
    pub(crate) name: String,
    /// The dataset as offered with default options, or the error that prevents opening it.
    pub(crate) offered: std::result::Result<Offered, String>,
    /// The nulls in it that a client who sets no options meets.
    pub(crate) note: Option<String>,
}

/// The offer to a client that sets no options.
#[derive(Debug, Clone)]
pub(crate) struct Offered {
    /// Fingerprint, plan and rows. The plan has batches of one row if neither the catalogue nor a client sets a batch size.
    pub(crate) info: StreamInfo,
    /// The columns.
    pub(crate) schema: Schema,
}

/// Replaces a [`StreamInfo`] if a dataset cannot be opened.
#[derive(Deserialize)]
struct Refused {
    error: String,
}

/// Stands in a [`StreamInfo`] of a list.
#[derive(Deserialize)]
struct Noted {
    note: String,
}

/// Lists the datasets of the server that the only address of `options` names, in the order of its catalogue; if it names a dataset,
/// only that one, as a loader of `options` gets it. The server opens each of them, unless it is open.
///
/// # Errors
/// [`Error::Config`] for an invalid address or invalid options; [`Error::Timeout`] if the server does not answer within their timeout;
/// [`Error::Remote`] if it cannot be reached, does not know the caller, or is not bowstring; for a single dataset, the server's error
/// about it.
pub(crate) async fn served(options: &LoaderOptions) -> Result<Vec<Served>> {
    let [url] = options.urls.as_slice() else {
        return Err(Error::config("urls", "one server at a time; several addresses are replicas of one"));
    };
    let (address, timeout) = (Address::parse(url)?, options.deadline()?);
    let credentials = Credentials::new(&options.storage_options)?;
    let peer = address.server();
    let asking = async {
        let connection = Connection::open(&address, &credentials, &Tcp).await?;
        if address.dataset.is_empty() {
            return connection.list(timeout).await;
        }
        let asked = StreamRequest::new(&address.dataset, options, Share::whole()).map_err(Failure::Final)?;
        let info = |asked: &StreamRequest| connection.info(FlightDescriptor::new_cmd(asked.to_json()), None, timeout);
        let info = match info(&asked).await {
            // A loader chooses the batch size; the columns are the same for any.
            Err(Failure::Final(Error::Config { option: "batch_size", .. })) => info(&asked.in_batches_of(1)).await,
            told => told,
        };
        Ok(vec![info?.with_descriptor(FlightDescriptor::new_path(vec![address.dataset.clone()]))])
    };
    let infos = match tokio::time::timeout(timeout, asking).await {
        Ok(found) => found.map_err(Failure::error)?,
        Err(_) => return Err(Error::late("receive", &peer, timeout, timeout)),
    };
    if !address.dataset.is_empty() {
        let one = infos.into_iter().next().ok_or_else(|| unnamed(&peer))?;
        let offered = Ok(offered(&peer, one)?);
        return Ok(vec![Served { name: address.dataset.to_string(), offered, note: None }]);
    }
    infos.into_iter().map(|info| dataset(&peer, info)).collect()
}

fn unnamed(peer: &str) -> Error {
    Error::Remote {
        peer: peer.to_owned(),
        what: "a dataset without a name: it is not a server of bowstring".to_owned(),
        source: None,
    }
}

/// Decodes one of many entries; an unreadable one does not hide the others.
fn dataset(peer: &str, info: FlightInfo) -> Result<Served> {
    let name = info.flight_descriptor.as_ref().and_then(|descriptor| descriptor.path.first()).cloned();
    let name = name.ok_or_else(|| unnamed(peer))?;
    if let Ok(Refused { error }) = serde_json::from_slice(&info.app_metadata) {
        return Ok(Served { name, offered: Err(error), note: None });
    }
    let note = serde_json::from_slice(&info.app_metadata).ok().map(|Noted { note }| note);
    Ok(Served { name, offered: offered(peer, info).map_err(|error| error.chain().to_string()), note })
}

fn offered(peer: &str, info: FlightInfo) -> Result<Offered> {
    let told = announced(peer, &info)?;
    Ok(Offered { info: told, schema: columns(peer, info)?.schema().clone() })
}
