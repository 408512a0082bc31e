//! A simulated device for tests: everything that may happen late happens late.
//!
//! Streams are queues whose commands run when the seed says so, a few at every call, or when somebody waits; never by
//! the clock, so that a run on a busy machine is as good as any. Consumers' streams are slow. A copy reads its source
//! when it runs, not when it is appended; freed memory is overwritten at once. A missing wait anywhere shows as wrong
//! bytes.

#![expect(unsafe_code, reason = "copies read host memory late, as a device does; the contract is the trait's")]

mod staging;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::staging::{POISON, Staging};
use super::address::Address;
use super::conversion::Conversion;
use super::decoding::Decoding;
use super::traits::{DEVICE_ALIGNMENT, Device, Event, Fenced, Kind, Stream, refused};
use crate::error::Result;
use crate::memory::HostAllocator;

/// Handles of consumers' streams begin here; the numbers below are those of DLPack's default streams.
const FIRST_HANDLE: u64 = 0x1000;
/// The device's own copy stream, among the streams.
const COPIES: u64 = 0;
/// The copy stream is this many times as likely to advance as another one.
const HASTE: u64 = 4;
/// Unless somebody waits, only one in this many commands may be of a consumer's stream: fewer than are appended, so
/// that they pile up.
const SLOWNESS: u64 = 4;

/// A device made of this process's memory; see the module documentation.
#[derive(Debug)]
pub struct Sim {
    state: Mutex<State>,
    staging: Arc<Staging>,
}

/// The calls to a [`Sim`] so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Blocks of device memory allocated.
    pub allocations: u64,
    /// Blocks of device memory freed.
    pub frees: u64,
    /// Events made.
    pub events: u64,
    /// Events given back.
    pub destroyed: u64,
    /// Copies run.
    pub copies: u64,
    /// Bytes copied.
    pub copied: u64,
    /// Conversions run.
    pub conversions: u64,
    /// Columns of photos decoded.
    pub decoded: u64,
    /// Blocks of page-locked memory allocated.
    pub pinned: u64,
    /// Blocks of page-locked memory freed.
    pub unpinned: u64,
    /// Accesses to memory that was not allocated.
    pub strays: u64,
    /// Calls that are not allowed while a stream is capturing a graph.
    pub spoiled: u64,
    /// Calls that could fail.
    pub calls: u64,
}

impl Counters {
    /// Returns true if everything that was taken was given back.
    pub fn is_balanced(&self) -> bool {
        self.allocations == self.frees && self.events == self.destroyed && self.pinned == self.unpinned
    }
}

/// A read of device memory on a consumer's stream, for [`Sim::collect`].
#[derive(Debug, Clone)]
pub struct Reading {
    stream: Stream,
    bytes: Arc<Mutex<Option<Vec<u8>>>>,
}

/// Host memory that a command reads when it runs.
#[derive(Clone, Copy)]
struct Source(*const u8);

// SAFETY: it is only read, under the contract of `Device::copy`, which holds until the command has run.
unsafe impl Send for Source {}

enum Command {
    Copy { to: Address, from: Source, bytes: usize },
    Convert { what: Conversion, from: Address, to: Address },
    Decode { what: Decoding, from: Address, to: Address },
    Move { to: Address, from: Address, bytes: usize },
    Read { at: Address, bytes: usize, to: Arc<Mutex<Option<Vec<u8>>>> },
    Signal(u64),
    Wait(u64),
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Copy { .. } => "copy",
            Self::Convert { .. } => "convert",
            Self::Decode { .. } => "decode",
            Self::Move { .. } => "move",
            Self::Read { .. } => "read",
            Self::Signal(_) => "signal",
            Self::Wait(_) => "wait",
        })
    }
}

#[derive(Debug, Default)]
struct Queue {
    commands: VecDeque<Command>,
    capturing: bool,
}

#[derive(Debug)]
struct State {
    random: u64,
    streams: BTreeMap<u64, Queue>,
    memory: BTreeMap<Address, Vec<u8>>,
    /// Given back and poisoned, and never given out again.
    freed: BTreeMap<Address, Vec<u8>>,
    next: Address,
    /// The last recorded ticket of each event.
    events: HashMap<u64, Option<u64>>,
    tickets: u64,
    done: HashSet<u64>,
    /// Tickets that are done when others are.
    sums: HashMap<u64, Vec<u64>>,
    counters: Counters,
    fail_at: Option<u64>,
}

impl Sim {
    /// A device whose streams run according to `seed`.
    pub fn new(seed: u64) -> Arc<Self> {
        let state = State {
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1),
            streams: [COPIES, 1, 2].map(|stream| (stream, Queue::default())).into(),
            memory: BTreeMap::new(),
            freed: BTreeMap::new(),
            next: 1 << 40,
            events: HashMap::new(),
            tickets: 0,
            done: HashSet::new(),
            sums: HashMap::new(),
            counters: Counters::default(),
            fail_at: None,
        };
        Arc::new(Self { state: Mutex::new(state), staging: Arc::default() })
    }

    /// A new stream of a consumer.
    pub fn stream(&self) -> Stream {
        let mut state = self.lock();
        let handle = FIRST_HANDLE + state.streams.len() as u64;
        state.streams.insert(handle, Queue::default());
        Stream::Handle(handle)
    }

    /// Reads device memory on `stream` when its turn comes.
    pub fn read_on(&self, stream: Stream, at: Address, bytes: usize) -> Reading {
        let reading = Reading { stream, bytes: Arc::default() };
        let mut state = self.lock();
        state.push(number(stream), Command::Read { at, bytes, to: Arc::clone(&reading.bytes) });
        state.progress();
        reading
    }

    /// The bytes that `reading` found, once its stream reached it; `None` if it cannot.
    pub fn collect(&self, reading: &Reading) -> Option<Vec<u8>> {
        let mut state = self.lock();
        let found = || reading.bytes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        while found().is_none() && state.step(Some(number(reading.stream))) {}
        found()
    }

    /// Sets whether `stream` is capturing a graph.
    pub fn capture(&self, stream: Stream, capturing: bool) {
        if let Some(queue) = self.lock().streams.get_mut(&number(stream)) {
            queue.capturing = capturing;
        }
    }

    /// Makes the `n`th of the coming calls fail, counted from 1.
    pub fn fail_at(&self, n: u64) {
        let mut state = self.lock();
        state.fail_at = Some(state.counters.calls + n);
    }

    /// The calls so far.
    pub fn counters(&self) -> Counters {
        let (pinned, unpinned) = self.staging.counts();
        Counters { pinned, unpinned, ..self.lock().counters }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call that may fail, after which a few commands run.
    fn call<T>(&self, what: &str, work: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let mut state = self.lock();
        state.counters.calls += 1;
        if state.fail_at == Some(state.counters.calls) {
            let why = format!("call {} was to fail", state.counters.calls);
            return Err(refused("sim:0", what, why));
        }
        let result = work(&mut state);
        state.progress();
        result
    }
}

/// The number of a consumer's stream among the streams.
fn number(stream: Stream) -> u64 {
    match stream {
        Stream::LegacyDefault => 1,
        Stream::PerThreadDefault => 2,
        Stream::Handle(handle) => handle,
    }
}

impl State {
    /// SplitMix64.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn push(&mut self, stream: u64, command: Command) {
        self.streams.entry(stream).or_default().commands.push_back(command);
    }

    fn is_done(&self, ticket: u64) -> bool {
        self.done.contains(&ticket)
            || self.sums.get(&ticket).is_some_and(|parts| parts.iter().all(|part| self.done.contains(part)))
    }

    /// The state of `event`: its last recorded ticket, if any.
    fn ticket(&self, event: &Event) -> Result<Option<u64>> {
        let unknown = || refused("sim:0", "an event", "it was given back, or never made");
        self.events.get(&event.handle()).copied().ok_or_else(unknown)
    }

    /// Records `event` at the end of `stream`.
    fn signal(&mut self, event: &Event, stream: u64) -> Result<()> {
        self.ticket(event)?;
        self.tickets += 1;
        let ticket = self.tickets;
        self.push(stream, Command::Signal(ticket));
        self.events.insert(event.handle(), Some(ticket));
        Ok(())
    }

    /// Appends a wait for `event` to `stream`.
    fn wait(&mut self, event: &Event, stream: u64) -> Result<()> {
        if let Some(ticket) = self.ticket(event)? {
            self.push(stream, Command::Wait(ticket));
        }
        Ok(())
    }

    /// Runs a few commands, most of them copies.
    fn progress(&mut self) {
        for _ in 0..self.draw() % 4 {
            let others = u64::from(self.draw().is_multiple_of(SLOWNESS));
            self.step_by(|stream| if stream == COPIES { HASTE } else { others });
        }
    }

    /// Runs one command of some stream, preferring `wanted`; false if none can run.
    fn step(&mut self, wanted: Option<u64>) -> bool {
        self.step_by(|stream| if stream == COPIES || Some(stream) == wanted { HASTE } else { 1 })
    }

    /// Runs one command of some stream, each in proportion to its weight; false if none can run.
    fn step_by(&mut self, weight: impl Fn(u64) -> u64) -> bool {
        let waits = |command: &Command| matches!(command, Command::Wait(ticket) if !self.is_done(*ticket));
        let heads = self.streams.iter().filter_map(|(number, queue)| Some((*number, queue.commands.front()?)));
        let mut able = Vec::new();
        for (number, _) in heads.filter(|(_, head)| !waits(head)) {
            able.extend(std::iter::repeat_n(number, weight(number) as usize));
        }
        if able.is_empty() {
            return false;
        }
        let chosen = able[(self.draw() % able.len() as u64) as usize];
        let command = self.streams.get_mut(&chosen).and_then(|queue| queue.commands.pop_front());
        if let Some(command) = command {
            self.run(command);
        }
        true
    }

    fn run(&mut self, command: Command) {
        match command {
            Command::Copy { to, from, bytes } => {
                self.counters.copies += 1;
                self.counters.copied += bytes as u64;
                if let Some(to) = self.bytes(to, bytes) {
                    // SAFETY: the caller that appended the copy promised that its source is readable, and not written,
                    // until it is done.
                    to.copy_from_slice(unsafe { std::slice::from_raw_parts(from.0, bytes) });
                }
            }
            Command::Convert { what, from, to } => self.convert(&what, from, to),
            Command::Decode { what, from, to } => self.decode(&what, from, to),
            Command::Move { to, from, bytes } => {
                let found = self.bytes(from, bytes).map_or_else(|| vec![POISON; bytes], |bytes| bytes.to_vec());
                if let Some(to) = self.bytes(to, bytes) {
                    to.copy_from_slice(&found);
                }
            }
            Command::Read { at, bytes, to } => {
                let found = self.bytes(at, bytes).map_or_else(|| vec![POISON; bytes], |bytes| bytes.to_vec());
                *to.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
            }
            Command::Signal(ticket) => {
                self.done.insert(ticket);
            }
            Command::Wait(_) => {}
        }
    }

    fn convert(&mut self, what: &Conversion, from: Address, to: Address) {
        self.counters.conversions += 1;
        let (read, written) = (what.from_bytes().unwrap_or(0), what.to_bytes().unwrap_or(0));
        let beside = what.beside().and_then(|(at, bytes)| self.bytes(at, bytes).map(|beside| beside.to_vec()));
        let Some(from) = self.bytes(from, read).map(|from| from.to_vec()) else { return };
        if let Some(to) = self.bytes(to, written) {
            what.on_host(&from, to, beside.as_deref());
        }
    }

    fn decode(&mut self, what: &Decoding, from: Address, to: Address) {
        self.counters.decoded += 1;
        let (read, written) = (what.from_bytes().unwrap_or(0), what.to_bytes().unwrap_or(0));
        let Some(from) = self.bytes(from, read).map(|from| from.to_vec()) else { return };
        if let Some(to) = self.bytes(to, written)
            && what.on_host(&from, to).is_err()
        {
            to.fill(POISON);
        }
    }

    /// `bytes` of allocated memory at `at`; freed memory is poison, and counts as a stray access.
    fn bytes(&mut self, at: Address, bytes: usize) -> Option<&mut [u8]> {
        let inside = |blocks: &BTreeMap<Address, Vec<u8>>| {
            let (start, block) = blocks.range(..=at).next_back()?;
            let offset = usize::try_from(at - start).ok()?;
            (offset.checked_add(bytes)? <= block.len()).then_some((*start, offset))
        };
        if let Some((start, offset)) = inside(&self.memory) {
            return self.memory.get_mut(&start).map(|block| &mut block[offset..offset + bytes]);
        }
        self.counters.strays += 1;
        let (start, offset) = inside(&self.freed)?;
        // Nobody gets this memory again, so writes to it do no further harm.
        self.freed.get_mut(&start).map(|block| &mut block[offset..offset + bytes])
    }
}

impl Device for Sim {
    fn kind(&self) -> Kind {
        Kind::Sim
    }

    fn ordinal(&self) -> u32 {
        0
    }

    fn staging(&self) -> Arc<dyn HostAllocator> {
        Arc::clone(&self.staging) as _
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        self.call("device memory", |state| {
            let at = state.next;
            state.next += (bytes as u64).next_multiple_of(DEVICE_ALIGNMENT as u64) + DEVICE_ALIGNMENT as u64;
            state.memory.insert(at, vec![POISON; bytes]);
            state.counters.allocations += 1;
            Ok(at)
        })
    }

    unsafe fn free(&self, at: Address, bytes: usize) {
        let mut state = self.lock();
        match state.memory.remove(&at) {
            Some(mut block) if block.len() == bytes => {
                block.fill(POISON);
                state.freed.insert(at, block);
                state.counters.frees += 1;
            }
            _ => state.counters.strays += 1,
        }
    }

    fn event(&self) -> Result<Event> {
        self.call("an event", |state| {
            state.counters.events += 1;
            let handle = state.counters.events;
            state.events.insert(handle, None);
            Ok(Event::new(handle))
        })
    }

    fn destroy(&self, event: Event) {
        let mut state = self.lock();
        match state.events.remove(&event.handle()) {
            Some(_) => state.counters.destroyed += 1,
            None => state.counters.strays += 1,
        }
    }

    unsafe fn copy(&self, to: Address, from: *const u8, bytes: usize) -> Result<()> {
        let from = Source(from);
        self.call("a copy", |state| {
            state.push(COPIES, Command::Copy { to, from, bytes });
            Ok(())
        })
    }

    unsafe fn convert(&self, what: &Conversion, from: Address, to: Address) -> Result<()> {
        self.call("a conversion", |state| {
            state.push(COPIES, Command::Convert { what: *what, from, to });
            Ok(())
        })
    }

    unsafe fn decode(&self, what: &Decoding, rows: *const u8, from: Address, to: Address) -> Result<u64> {
        let (Some(read), Some(written)) = (what.from_bytes(), what.to_bytes()) else {
            return Err(refused("sim:0", "decoding photos", "their size overflows memory"));
        };
        // SAFETY: the caller promises that this many bytes are readable, and not written.
        let now = unsafe { std::slice::from_raw_parts(rows, read) };
        // Damage is reported now; the pixels come when the command runs, from the device's memory at that time.
        what.on_host(now, &mut vec![0; written])?;
        self.call("decoding photos", |state| {
            state.push(COPIES, Command::Decode { what: what.clone(), from, to });
            Ok(0)
        })
    }

    fn record(&self, event: &Event) -> Result<()> {
        self.call("recording an event", |state| state.signal(event, COPIES))
    }

    fn wait(&self, event: &Event) -> Result<()> {
        self.call("waiting for an event", |state| state.wait(event, COPIES))
    }

    fn drain(&self) -> Result<()> {
        self.call("draining the copies", |state| {
            let left = |state: &State| state.streams.get(&COPIES).is_some_and(|queue| !queue.commands.is_empty());
            while left(state) && state.step(Some(COPIES)) {}
            if left(state) { Err(refused("sim:0", "draining the copies", "they wait for each other")) } else { Ok(()) }
        })
    }

    fn make_visible(&self, event: &Event, stream: Stream) -> Result<()> {
        self.call("making a batch visible", |state| {
            if state.streams.get(&number(stream)).is_some_and(|queue| queue.capturing) {
                return Err(refused("sim:0", "making a batch visible", "the stream records a graph"));
            }
            state.wait(event, number(stream))
        })
    }

    fn fence(&self, event: &Event, stream: Stream) -> Result<Fenced> {
        self.call("a fence", |state| {
            if state.streams.get(&number(stream)).is_some_and(|queue| queue.capturing) {
                return Ok(Fenced::Capturing);
            }
            state.signal(event, number(stream))?;
            Ok(Fenced::Recorded)
        })
    }

    fn fence_context(&self, event: &Event) -> Result<Fenced> {
        self.call("a fence of the context", |state| {
            state.ticket(event)?;
            if state.streams.values().any(|queue| queue.capturing) {
                state.counters.spoiled += 1;
            }
            let streams: Vec<u64> = state.streams.keys().copied().collect();
            let mut parts = Vec::new();
            for stream in streams {
                state.tickets += 1;
                parts.push(state.tickets);
                state.push(stream, Command::Signal(state.tickets));
            }
            state.tickets += 1;
            let sum = state.tickets;
            state.sums.insert(sum, parts);
            state.events.insert(event.handle(), Some(sum));
            Ok(Fenced::Recorded)
        })
    }

    fn synchronize_all(&self) -> Result<()> {
        self.call("waiting for all streams", |state| {
            if state.streams.values().any(|queue| queue.capturing) {
                state.counters.spoiled += 1;
            }
            while state.step(None) {}
            match state.streams.values().all(|queue| queue.commands.is_empty()) {
                true => Ok(()),
                false => Err(refused("sim:0", "waiting for all streams", "they wait for each other")),
            }
        })
    }

    fn is_done(&self, event: &Event) -> Result<bool> {
        self.call("asking for an event", |state| {
            // Asking often enough makes progress.
            state.step(Some(COPIES));
            Ok(state.ticket(event)?.is_none_or(|ticket| state.is_done(ticket)))
        })
    }

    fn synchronize(&self, event: &Event) -> Result<()> {
        self.call("waiting for an event", |state| {
            let Some(ticket) = state.ticket(event)? else { return Ok(()) };
            while !state.is_done(ticket) {
                if !state.step(None) {
                    return Err(refused("sim:0", "waiting for an event", "the streams wait for each other"));
                }
            }
            Ok(())
        })
    }

    unsafe fn copy_within(&self, on: Option<Stream>, to: Address, from: Address, bytes: usize) -> Result<()> {
        self.call("a copy within the device", |state| {
            let command = Command::Move { to, from, bytes };
            match on.map(number) {
                Some(stream) if state.streams.get(&stream).is_some_and(|queue| queue.capturing) => {
                    return Err(refused("sim:0", "a copy within the device", "the stream records a graph"));
                }
                Some(stream) => state.push(stream, command),
                None => state.run(command),
            }
            Ok(())
        })
    }

    unsafe fn read(&self, from: Address, to: &mut [u8]) -> Result<()> {
        self.call("reading device memory", |state| {
            match state.bytes(from, to.len()) {
                Some(bytes) => to.copy_from_slice(bytes),
                None => to.fill(POISON),
            }
            Ok(())
        })
    }
}
