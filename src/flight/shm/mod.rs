//! Batches for ranks on the same host, through shared memory.
