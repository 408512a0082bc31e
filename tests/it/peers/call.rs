//! A recorded call: what a client sent and what a server answered, as JSON that people read, and back as the messages of gRPC.

use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo, PutResult,
    SchemaResult, Ticket,
};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use hmac::{Hmac, Mac as _};
use prost::Message;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::Sha256;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

/// Name of the service in the path of a call.
pub(super) const SERVICE: &str = "arrow.flight.protocol.FlightService";
/// The key that tickets are signed with, in all recordings.
pub(super) const KEY: &[u8; 32] = b"the key of all recorded tickets!";
/// The trailer with an error.
const DETAIL: &str = "bowstring-error-bin";

/// See the module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Call {
    /// The call of Flight; of `DoAction` the action.
    pub(super) name: String,
    /// The messages of the client.
    pub(super) asked: Vec<Value>,
    /// The messages of the server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) answered: Vec<Value>,
    /// The code of an error and what the server says of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<(i32, Value)>,
}

impl Call {
    /// The call at the end of the address `path`, with the messages in `body`.
    pub(super) fn asked(path: &str, body: Bytes) -> Self {
        let rpc = path.rsplit('/').next().unwrap();
        let messages = frames(body);
        let name = match rpc {
            "DoAction" => Action::decode(messages[0].clone()).unwrap().r#type,
            rpc => rpc.to_owned(),
        };
        let asked = messages.into_iter().map(|message| read_asked(rpc, message)).collect();
        Self { name, asked, answered: Vec::new(), refused: None }
    }

    /// The call of Flight.
    pub(super) fn rpc(&self) -> &str {
        if self.name.starts_with(char::is_uppercase) { &self.name } else { "DoAction" }
    }

    pub(super) fn path(&self) -> String {
        format!("/{SERVICE}/{}", self.rpc())
    }

    /// Takes the answer of a server.
    pub(super) fn hear(&mut self, body: Bytes, status: &Status) {
        let rpc = self.rpc().to_owned();
        self.answered = frames(body).into_iter().map(|message| read_answer(&rpc, message)).collect();
        self.refused = (status.code() != Code::Ok).then(|| {
            let detail = status.metadata().get_bin(DETAIL).and_then(|detail| detail.to_bytes().ok());
            (i32::from(status.code()), detail.map_or(Value::Null, |detail| value(&detail)))
        });
    }

    /// The messages of the client.
    pub(super) fn request(&self) -> Bytes {
        framed(self.asked.iter().map(|message| write_asked(&self.name, self.rpc(), message)))
    }

    /// The messages of the server.
    pub(super) fn answer(&self) -> Bytes {
        framed(self.answered.iter().map(|message| write_answer(self.rpc(), message)))
    }

    /// The end of the answer.
    pub(super) fn status(&self) -> Status {
        let Some((code, detail)) = &self.refused else { return Status::ok("") };
        let mut metadata = MetadataMap::new();
        metadata.insert_bin(DETAIL, MetadataValue::from_bytes(detail.to_string().as_bytes()));
        Status::with_metadata(Code::from(*code), "as it was recorded", metadata)
    }

    /// The messages of a stream of batches, decoded by Arrow's own client.
    pub(super) fn batches(&self) -> Vec<arrow::array::RecordBatch> {
        let messages: Vec<FlightData> = self.answered.iter().map(data).collect();
        arrow_flight::utils::flight_data_to_batches(&messages).unwrap()
    }
}

/// Signs the content of a ticket, which is made to last.
pub(super) fn signed(content: &Value) -> Bytes {
    let mut content = content.clone();
    content["expires"] = json!(u64::MAX);
    let content = content.to_string();
    let mut mac = <Hmac<Sha256> as hmac::KeyInit>::new_from_slice(KEY).unwrap();
    mac.update(b"BT1");
    mac.update(content.as_bytes());
    [b"BT1", &mac.finalize().into_bytes()[..], content.as_bytes()].concat().into()
}

fn frames(mut body: Bytes) -> Vec<Bytes> {
    let mut frames = Vec::new();
    while body.has_remaining() {
        assert_eq!(body.get_u8(), 0, "compressed");
        let length = body.get_u32() as usize;
        frames.push(body.split_to(length));
    }
    frames
}

fn framed(messages: impl Iterator<Item = Vec<u8>>) -> Bytes {
    let mut body = BytesMut::new();
    for message in messages {
        body.put_u8(0);
        body.put_u32(message.len() as u32);
        body.extend_from_slice(&message);
    }
    body.freeze()
}

fn read_asked(rpc: &str, message: Bytes) -> Value {
    match rpc {
        "GetFlightInfo" | "GetSchema" => descriptor(&FlightDescriptor::decode(message).unwrap()),
        "DoGet" => content(&Ticket::decode(message).unwrap()),
        "DoPut" => read_data(FlightData::decode(message).unwrap()),
        "DoAction" => value(&Action::decode(message).unwrap().body),
        _ => json!({}),
    }
}

fn write_asked(name: &str, rpc: &str, message: &Value) -> Vec<u8> {
    match rpc {
        "GetFlightInfo" | "GetSchema" => descriptor_of(message).encode_to_vec(),
        "DoGet" => Ticket { ticket: signed(message) }.encode_to_vec(),
        "DoPut" => data(message).encode_to_vec(),
        "DoAction" => Action::new(name, message.to_string()).encode_to_vec(),
        "ListFlights" => Criteria::default().encode_to_vec(),
        _ => Empty {}.encode_to_vec(),
    }
}

fn read_answer(rpc: &str, message: Bytes) -> Value {
    match rpc {
        "GetFlightInfo" | "ListFlights" => {
            let info = FlightInfo::decode(message).unwrap();
            let tickets = info.endpoint.iter().map(|endpoint| content(endpoint.ticket.as_ref().unwrap()));
            json!({
                "schema": hex(&info.schema),
                "descriptor": info.flight_descriptor.as_ref().map(descriptor),
                "tickets": tickets.collect::<Vec<_>>(),
                "rows": info.total_records,
                "ordered": info.ordered,
                "metadata": elsewhere(value(&info.app_metadata)),
            })
        }
        "GetSchema" => json!({"schema": hex(&SchemaResult::decode(message).unwrap().schema)}),
        "DoGet" => read_data(FlightData::decode(message).unwrap()),
        "DoPut" => value(&PutResult::decode(message).unwrap().app_metadata),
        "ListActions" => ActionType::decode(message).unwrap().r#type.into(),
        "DoAction" => value(&arrow_flight::Result::decode(message).unwrap().body),
        other => panic!("{other} is not recorded"),
    }
}

fn write_answer(rpc: &str, message: &Value) -> Vec<u8> {
    match rpc {
        "GetFlightInfo" | "ListFlights" => {
            let ticket = |ticket: &Value| FlightEndpoint {
                ticket: Some(Ticket { ticket: signed(ticket) }),
                ..FlightEndpoint::default()
            };
            FlightInfo {
                schema: unhex(&message["schema"]),
                flight_descriptor: message.get("descriptor").filter(|it| !it.is_null()).map(descriptor_of),
                endpoint: message["tickets"].as_array().unwrap().iter().map(ticket).collect(),
                total_records: message["rows"].as_i64().unwrap(),
                total_bytes: -1,
                ordered: message["ordered"].as_bool().unwrap(),
                app_metadata: message["metadata"].to_string().into(),
            }
            .encode_to_vec()
        }
        "GetSchema" => SchemaResult { schema: unhex(&message["schema"]) }.encode_to_vec(),
        "DoGet" => data(message).encode_to_vec(),
        "DoPut" => PutResult { app_metadata: message.to_string().into() }.encode_to_vec(),
        "DoAction" => arrow_flight::Result::new(message.to_string()).encode_to_vec(),
        other => panic!("{other} is not played"),
    }
}

/// A description of a stream by a server on another host: that of the recorder is nobody's business.
fn elsewhere(mut metadata: Value) -> Value {
    if let Some(local) = metadata.get_mut("local") {
        (local["host"], local["socket"]) = (json!("another host"), json!("bowstring"));
    }
    metadata
}

fn descriptor(descriptor: &FlightDescriptor) -> Value {
    if descriptor.path.is_empty() {
        json!({"command": value(&descriptor.cmd)})
    } else {
        json!({"path": descriptor.path})
    }
}

fn descriptor_of(message: &Value) -> FlightDescriptor {
    match message.get("path") {
        Some(path) => FlightDescriptor::new_path(serde_json::from_value(path.clone()).unwrap()),
        None => FlightDescriptor::new_cmd(message["command"].to_string()),
    }
}

fn content(ticket: &Ticket) -> Value {
    assert!(ticket.ticket.starts_with(b"BT1"));
    value(&ticket.ticket[35..])
}

fn read_data(data: FlightData) -> Value {
    let mut message = json!({"header": hex(&data.data_header), "body": hex(&data.data_body)});
    if let Some(found) = &data.flight_descriptor {
        message["descriptor"] = descriptor(found);
    }
    if !data.app_metadata.is_empty() {
        message["metadata"] = value(&data.app_metadata);
    }
    message
}

fn data(message: &Value) -> FlightData {
    FlightData {
        flight_descriptor: message.get("descriptor").map(descriptor_of),
        data_header: unhex(&message["header"]),
        app_metadata: message.get("metadata").map(|metadata| metadata.to_string().into()).unwrap_or_default(),
        data_body: unhex(&message["body"]),
    }
}

/// JSON, or null where there is none.
pub(super) fn value(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or(Value::Null)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn unhex(text: &Value) -> Bytes {
    let text = text.as_str().unwrap();
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect::<Vec<u8>>().into()
}
