//! Each place that waits for another process or thread: the table says for whom, what ends the wait, and the test that would notice if it did not.
//!
//! The list is not kept by hand: the sources are searched for what waits, and a place that is not in the table, or a row without a place,
//! fails. Searched are the parts in which somebody else may fail to act: the network, gangs, shared memory, channels and queues of the
//! pipeline, memory, devices, and locks between processes. Not searched are requests to stores, whose limits are options of their
//! clients (`timeout`, `connect_timeout`, `retry_timeout`), conversions and the command line. A mutex that is held for a few
//! instructions is no wait.

use std::collections::{BTreeMap, BTreeSet};

use crate::floors::{Sources, code_only, has_word, rust_sources};

/// The parts that are searched.
const PARTS: &[&str] = &[
    "src/dataset/local.rs",
    "src/dataset/open.rs",
    "src/dataset/select.rs",
    "src/device",
    "src/flight",
    "src/loader",
    "src/memory",
    "src/pipeline",
    "src/store/cache",
    "src/store/child.rs",
    "src/store/fuse/mod.rs",
    "src/store/fuse/work.rs",
    "src/store/lock.rs",
];

/// What waits. A call that only hands on the patience of its caller is one of these too: its row says whose that is.
const WAITS: &[&str] = &[
    ".recv()",
    ".recv_timeout(",
    ".blocking_recv(",
    ".blocking_send(",
    ".changed()",
    ".notified()",
    ".acquire().await",
    ".acquire_many(",
    ".acquire_owned(",
    ".acquire_many_owned(",
    ".wait(",
    ".wait_timeout",
    ".wait_while",
    ".wait_for(",
    ".wait_until(",
    ".join()",
    "thread::sleep(",
    "time::sleep(",
    "sleep_until(",
    "timeout(",
    "timeout_at(",
    "park_timeout(",
    "thread::park(",
    ".accept()",
    ".connect().await",
    ".next().await",
    ".get_or_try_init(",
    ".message().await",
    ".closed()",
    ".lock().await",
    ".frame())",
];

/// Words with one of the above in them that wait for nothing: getters, settings, and what notes for an error whom it is waited for.
const NOT: &[&str] = &["fn timeout(", ".timeout()", "self.wait_for(", "source.wait_for(", "readers.join()"];

/// File, function, who is waited for, what ends the wait, and the test. Words in capitals of the fourth column are constants of the file.
///
/// "The caller's" patience is that of the call on top, which has a row of its own: `timeout` of the loader for batches, and the limits of
/// a server (`request`, `handshake`, `idle`, `grace`) for calls.
const TABLE: &str = "
src/dataset/local.rs | read_local | threads that read footers of this machine | the timeout of opening | a_file_that_does_not_come_in_time_is_named
src/dataset/open.rs | within | a store | the timeout of opening | a_wait_beyond_its_limit_names_the_culprit
src/dataset/select.rs | decide | other row groups of one filter, for a turn | the timeout of opening, above | few_filters_run_at_once_and_all_within_the_budget
src/dataset/select.rs | take | other row groups of one filter, for memory | the timeout of opening, above | a_filter_over_large_row_groups_gets_what_they_take_or_an_error
src/device/cuda/decoder.rs | append | the decoder's stream on the GPU | the driver's own end of a kernel; a lost device is an error | lanes_are_used_again_only_when_they_are_done
src/device/cuda/pinned.rs | beside | a thread that pins memory beside a GPU | its end: one call of the driver | work_beside_a_gpu_stays_there_and_moves_nobody_else
src/device/sim.rs | make_visible | a simulated copy | the simulation's clock | the_suite_passes_and_without_fences_it_does_not
src/device/sim.rs | wait | a simulated copy | the simulation's clock | the_suite_passes_and_without_fences_it_does_not
src/device/slot.rs | wait | the consumer, who gives back a slot | the caller's patience | whoever_keeps_all_batches_is_told_so
src/device/slot.rs | wait_for_fences | streams of the consumer, on the transfer thread | the driver's own end of a kernel; a lost device is an error | every_call_that_fails_is_an_error_and_loses_nothing
src/device/slot.rs | wait_until | the transfer thread, at the end | its turn, at most IDLE or BUSY in upload.rs | dropping_and_closing_stop_at_once
src/device/upload.rs | close | the transfer thread | its turn, at most IDLE or BUSY | dropping_and_closing_stop_at_once
src/device/upload.rs | next | the transfer thread, for a batch | the timeout of the loader, in turns of IDLE | whoever_keeps_all_batches_is_told_so
src/device/upload.rs | stop | fences of the consumer's streams, on the transfer thread alone | BUSY or PATIENCE a turn; nobody waits for the thread | dropping_and_closing_stop_at_once
src/device/upload.rs | turn | the consumer, who gives back a slot | the rest of the timeout of the loader | whoever_keeps_all_batches_is_told_so
src/flight/client/connection.rs | action | a server | the caller's patience, by within | every_wait_of_a_client_ends_in_time_and_names_the_peer
src/flight/client/connection.rs | dial | a server, for a connection | CONNECT | every_wait_of_a_client_ends_in_time_and_names_the_peer
src/flight/client/connection.rs | list | a server | the caller's patience, by within | every_wait_of_a_client_ends_in_time_and_names_the_peer
src/flight/client/connection.rs | open | a server, for a connection and its pings | CONNECT and PING | every_wait_of_a_client_ends_in_time_and_names_the_peer
src/flight/client/connection.rs | within | a server | the timeout of the loader | every_wait_of_a_client_ends_in_time_and_names_the_peer
src/flight/client/gang.rs | abandon | a server, for the last word | LAST_WORD | a_dropped_member_ends_the_generation_and_its_streams
src/flight/client/gang.rs | join | the other ranks | the timeout of the options, which the call enforces | every_wait_of_a_client_ends_in_time_and_names_the_peer
src/flight/client/gang.rs | wait | the other ranks | the caller's patience | every_wait_of_a_client_ends_in_time_and_names_the_peer
src/flight/client/local.rs | next | a server of this host | the deadline of shm::client, by attempt_local | a_killed_server_is_an_error_at_once_and_a_stopped_one_within_the_deadline
src/flight/client/pending.rs | finish | a call that has a deadline of its own | that of the call; a dropped call ends it | every_wait_of_a_client_ends_in_time_and_names_the_peer
src/flight/client/pending.rs | wait | a call | the caller's patience | every_wait_of_a_client_ends_in_time_and_names_the_peer
src/flight/client/receive.rs | announced | a server | the rest of the timeout of the loader | every_wait_of_a_client_ends_in_time_and_names_the_peer
src/flight/client/receive.rs | attempt | a server, for a message of a stream | the rest of the timeout of the loader | every_wait_of_a_client_ends_in_time_and_names_the_peer
src/flight/client/receive.rs | attempt_local | a server of this host, for a batch | the silence that a source allows | a_killed_server_is_an_error_at_once_and_a_stopped_one_within_the_deadline
src/flight/client/receive.rs | failed | nobody: the pause before the next try | SHORTEST to LONGEST, and the rest of the timeout | a_server_that_repeatedly_sends_nothing_is_left_for_another
src/flight/client/receive.rs | hand_over | the consumer, to take a batch | none: a slow consumer is not a fault; a dropped one ends it | a_slow_consumer_is_not_an_error
src/flight/client/receive.rs | run | the consumer, to take an error | none: a dropped consumer ends it | a_slow_consumer_is_not_an_error
src/flight/client/remote.rs | next | the receiving task, for a batch | the timeout of the loader, in the caller's slices | every_wait_of_a_client_ends_in_time_and_names_the_peer
src/flight/client/served.rs | served | a server, for the list of its datasets | its timeout | inspect_lists_the_datasets_of_a_server
src/flight/client/snapshot.rs | take | a server, for its figures | its timeout | every_wait_of_a_client_ends_in_time_and_names_the_peer
src/flight/gang/call.rs | exchange | a server | the deadline of the call, in tries of its patience | every_wait_ends_by_its_deadline_and_names_the_culprit
src/flight/gang/member.rs | drop | a server, for the last word | the lease | a_dropped_member_ends_the_generation_and_its_streams
src/flight/gang/member.rs | heartbeats | a server | part of the lease | a_lost_member_is_noticed_within_the_lease
src/flight/gang/member.rs | meet | an earlier meeting of this rank | the deadline of that one | every_wait_ends_by_its_deadline_and_names_the_culprit
src/flight/gang/member.rs | wait_ended | the end of the generation | the end of the lease | a_lost_member_is_noticed_within_the_lease
src/flight/gang/registry.rs | call_as | other ranks, by wait | the time that a call is held at most | no_call_is_held_longer_than_the_registry_says
src/flight/gang/registry.rs | rung | a change of the gang | the caller's patience, by wait | no_call_is_held_longer_than_the_registry_says
src/flight/gang/registry.rs | sweep | the next lease that ends | its time | a_lost_member_is_noticed_within_the_lease
src/flight/gang/registry.rs | wait | other ranks | the time that a call is held at most | no_call_is_held_longer_than_the_registry_says
src/flight/put/staging.rs | alone | others that change the dataset | PATIENCE, and a Timeout that names the dataset | commits_wait_for_those_of_their_own_dataset_alone_and_not_for_ever
src/flight/put/staging.rs | new | nobody: the pause between looks for old writes | a quarter of the time to live | a_write_that_is_not_committed_in_its_time_vanishes
src/flight/put/staging.rs | place | other writers, for a thread | the end of a message or commit of theirs | one_space_leaves_threads_to_others
src/flight/put/staging.rs | stage_messages | a writer, for a message | the limit of requests, by more in rpc/incoming.rs | what_does_not_come_is_not_waited_for
src/flight/server/access/audit.rs | flush | the thread that writes the audit | the caller's patience | a_disk_that_takes_nothing_costs_lines_and_no_time_or_memory
src/flight/server/access/audit.rs | run | the next line | one second, and again | lines_are_whole_and_the_file_may_be_moved_away
src/flight/server/access/auth_layer.rs | arrived | a caller, for a request | the limit of handshakes | mute_peers_and_crowds_are_turned_away
src/flight/server/access/refusals.rs | hold | nobody: a guess of a token costs time | HELD | one_peer_is_held_and_the_others_are_not
src/flight/server/access/tls.rs | client | a server, for its handshake | that of the connection | peers_speak_tls_and_hand_blocks_only_to_holders_of_a_token
src/flight/server/access/tls.rs | secured | a caller, for its handshake | the limit of handshakes | mute_peers_and_crowds_are_turned_away
src/flight/server/cache/leases.rs | fulfilled | the reader with the lease | LEASE in cache/service.rs, which asks beside it | who_waits_for_another_reader_does_not_wait_for_ever
src/flight/server/cache/leases.rs | outcome | the reader with the lease, for others | LEASE in cache/service.rs: the lease ends with its reader's call | who_waits_for_another_reader_does_not_wait_for_ever
src/flight/server/cache/mod.rs | serve | the signal to end; then readers | GRACE | a_cache_is_not_open_by_accident
src/flight/server/cache/service.rs | answer | the reader with the lease | LEASE | who_waits_for_another_reader_does_not_wait_for_ever
src/flight/server/cache/service.rs | do_get | the answering task | its own ends; a dropped one ends it | readers_that_do_not_read_keep_nobody_out
src/flight/server/cache/service.rs | do_put | a giver | LEASE | gifts_that_are_wrong_reach_nobody
src/flight/server/cache/service.rs | look | the cache's disk, or a place to move bytes; then the reader | SLOW, then STALL | readers_that_do_not_read_keep_nobody_out
src/flight/server/cache/service.rs | moving | a reader or a giver, for a part of a block | STILL for its turn, then that of the work | readers_that_do_not_read_keep_nobody_out
src/flight/server/cache/service.rs | next | a giver, for a message | STALL | calls_that_never_come_whole_end_and_honest_readers_are_served_meanwhile
src/flight/server/cache/service.rs | passage | other blocks on their way | SLOW in look, or LEASE in do_put | a_block_on_its_way_holds_its_passage_until_nobody_has_a_part_of_it
src/flight/server/cache/service.rs | put | a reader, to take a message | STALL | readers_that_do_not_read_keep_nobody_out
src/flight/server/cache/service.rs | send | a reader, to take a block | STALL and the time of the bytes | readers_that_do_not_read_keep_nobody_out
src/flight/server/cache/service.rs | take | other givers, then a giver, for all of a block | LEASE in do_put; STALL and the time of the bytes | calls_that_never_come_whole_end_and_honest_readers_are_served_meanwhile
src/flight/server/cache/service.rs | words | the work, while the reader hears of it each WORD | that of the work; a reader that leaves ends it | who_waits_for_another_reader_does_not_wait_for_ever
src/flight/server/cache/turns.rs | next | readers whose blocks are sent | STILL in cache/service.rs for each; a reader that leaves ends it | hosts_that_share_a_slow_link_to_a_home_read_all_blocks_from_it
src/flight/server/catalog/dataset_cache.rs | get | another call that looks at the same files; a store | LOOK; a dropped call leaves it to the next | a_slow_store_holds_nobody_up_for_long
src/flight/server/catalog/once.rs | get | another call that computes the same, on a thread of its own | the end of the computation; a dropped call leaves it to the next | what_all_ranks_ask_for_is_worked_out_once
src/flight/server/catalog/openings.rs | open | another call that opens the same | the end of that opening, whose turn and memory are there; a dropped call leaves it to the next | a_client_that_stops_reading_a_list_holds_up_nobody
src/flight/server/catalog/turns.rs | turn | other openings | PATIENCE, and a Timeout | a_turn_that_does_not_come_is_an_error_and_one_tenant_leaves_turns_to_others
src/flight/server/mod.rs | serve_on | the signal to end; then streams | the grace time | a_drain_ends_with_the_grace_time_despite_open_connections
src/flight/server/ops/admin.rs | admin | the signal to end; then the last answers | LAST | a_draining_server_is_not_ready_and_a_second_signal_ends_it
src/flight/server/ops/admin.rs | serve | a caller, for a request; the signal to end | HEAD, IDLE and AGE | a_head_that_does_not_come_is_not_waited_for
src/flight/server/ops/background.rs | close_within | streams of the server | the grace time and AFTER_GRACE, and a Timeout | a_server_told_to_end_is_gone_in_time_whoever_does_not_read
src/flight/server/ops/connections.rs | accepted | the next caller; after an error of the system PAUSE | none: that is serving; the signal to end drops it | mute_peers_and_crowds_are_turned_away
src/flight/server/ops/connections.rs | new | a caller, for its introduction, its requests, its age | the limits of connections | mute_idle_and_old_connections_are_closed_and_busy_ones_are_not
src/flight/server/ops/limits.rs | apply | a caller, for an answer to a ping | keepalive_timeout_seconds | mute_idle_and_old_connections_are_closed_and_busy_ones_are_not
src/flight/server/ops/request.rs | whole | a caller, for a request | its patience | mute_peers_and_crowds_are_turned_away
src/flight/server/rpc/answer.rs | next | the stream of a call | that of streaming.rs and rows.rs | a_server_told_to_end_is_gone_in_time_whoever_does_not_read
src/flight/server/rpc/answer.rs | open | the stream of a call | that of streaming.rs and rows.rs | a_server_told_to_end_is_gone_in_time_whoever_does_not_read
src/flight/server/rpc/answer.rs | rows | the end of the server, beside an opening | none: the opening ends it | stored_rows_that_wait_to_be_opened_end_with_the_server
src/flight/server/rpc/in_task.rs | poll_next | the stream whose item it makes | that of the stream; a dropped answer ends it | an_item_that_nobody_polls_for_gives_back_what_it_was_granted
src/flight/server/rpc/incoming.rs | acquire | messages of others, for memory | LONGEST, and a Timeout | what_is_announced_is_paid_for_by_its_tenant
src/flight/server/rpc/incoming.rs | more | a writer, for the next bytes | the limit of requests | what_does_not_come_is_not_waited_for
src/flight/server/rpc/incoming.rs | request | a caller, for a request and room for it | the limit of requests | what_does_not_come_is_not_waited_for
src/flight/server/rpc/put.rs | stage | a writer, for a message | the limit of requests, by more in incoming.rs | a_loader_reads_while_hundreds_of_writers_say_nothing
src/flight/server/rpc/service.rs | do_action | nobody: it counts a call that waits | that of the call | calls_and_writes_of_a_tenant_are_counted_apart
src/flight/server/rpc/streaming.rs | find | the shared stream, for a step | the reads of the store; a fence, a drain or a caller that leaves end it | a_server_told_to_end_is_gone_in_time_whoever_does_not_read
src/flight/server/rpc/streaming.rs | pulled | the end of the generation, or of the server | none: the stream ends it | a_dropped_member_ends_the_generation_and_its_streams
src/flight/server/stream/budget.rs | claim | other streams, for memory | PATIENCE, asking again each ASKS | streams_that_are_read_keep_their_memory_unless_their_tenant_has_more_than_its_share
src/flight/server/stream/hangup.rs | asked | the question to hang up | none: the connection ends it | connections_are_found_by_their_address_and_end_once
src/flight/server/stream/quota.rs | acquire | the clock, for a tenant's pace | LONGEST | bytes_wait_for_room_and_for_their_turn
src/flight/server/stream/quota.rs | take | other streams of the tenant, for room | STALLED since one of them was read | streams_that_nobody_reads_stop_no_other_rank_for_ever
src/flight/server/stream/rows.rs | next | the rows of a table, or the end of the server | the reads of the store; a drain or a caller that leaves end it | a_server_told_to_end_is_gone_in_time_whoever_does_not_read
src/flight/server/stream/shared_plan.rs | get | another call that makes the same plan | PATIENCE in budget.rs, by the calls of the same tenant | nobody_waits_for_a_plan_behind_another_tenant_or_is_told_what_that_holds
src/flight/server/stream/shared_stream.rs | next | another stream that reads the same step; its source | the reads of the store; a caller that leaves gives up its turn | streams_that_are_read_keep_their_memory_unless_their_tenant_has_more_than_its_share
src/flight/shm/client.rs | connect | a server of this host | the deadline | a_killed_server_is_an_error_at_once_and_a_stopped_one_within_the_deadline
src/flight/shm/client.rs | dial | a server of this host whose queue is full | the deadline, by connect | a_killed_server_is_an_error_at_once_and_a_stopped_one_within_the_deadline
src/flight/shm/client.rs | linger | the consumer, who still holds batches | the deadline since the server was heard | batches_kept_by_a_rank_are_reclaimed_when_its_source_ends
src/flight/shm/client.rs | receive | a server of this host | the deadline since it was heard | a_killed_server_is_an_error_at_once_and_a_stopped_one_within_the_deadline
src/flight/shm/client.rs | run | the consumer, to take an error | none: a dropped consumer ends it | a_killed_server_is_an_error_at_once_and_a_stopped_one_within_the_deadline
src/flight/shm/listener.rs | refuse | a rank, to take the refusal | LAST_WORD | a_refusal_arrives_with_its_code
src/flight/shm/listener.rs | run | the next rank; after an error of the system a pause | none: that is serving; the end of the server drops it | lying_ranks_are_refused_and_the_honest_are_served
src/flight/shm/listener.rs | serve | a rank: its greeting, its life, the last word | the handshake, the silence, LAST_WORD | killed_ranks_leave_nothing_and_disturb_nobody
src/memory/pool.rs | reserve_blocking | whoever holds memory of the budget | its patience | a_thread_waits_until_there_is_room_or_its_patience_ends
src/pipeline/engine.rs | next_within | the pipeline, for a batch | the timeout of the loader, in the caller's slices | test_timeout_names_the_culprit
src/pipeline/feed.rs | run | the consumer, to take a batch | none: a slow consumer is not a fault; a dropped one ends it | a_slow_consumer_is_not_an_error
src/pipeline/groups.rs | is_loaded | whoever loads the row group | that of the load; a failed one is told | a_tight_budget_slows_but_never_hangs
src/pipeline/groups.rs | read_and_decode | other row groups, for a read and for a thread | their end; the timeout of the loader, above | a_tight_budget_slows_but_never_hangs
src/pipeline/local.rs | foresee | the task that tells what will be read | TELLING, or less | a_check_of_values_ends_with_the_timeout
src/pipeline/local.rs | foretell | the task that tells what will be read | the rest of the timeout | a_check_of_values_ends_with_the_timeout
src/pipeline/local.rs | look_ends | the task that looks at the files | the caller's slice of the timeout | a_check_of_values_ends_with_the_timeout
src/pipeline/lookahead.rs | fetch | the other row groups that are fetched ahead, and the consumer, to take a batch | their end; it ends with the epoch or the source | a_loader_that_is_left_fetches_nothing_more
src/pipeline/lookahead.rs | look_ahead | the row groups that are fetched ahead | it ends with the epoch or the source | a_loader_that_is_left_fetches_nothing_more
src/pipeline/reader.rs | work | the consumer, to take batches | none: a slow consumer is not a fault; a dropped one ends it | dropping_and_closing_stop_at_once
src/pipeline/reader_state.rs | changed_within | the tasks of the pipeline | the caller's slice of the timeout | test_timeout_names_the_culprit
src/store/cache/cluster/mod.rs | give | blocks that are on their way | QUEUE, and the reader keeps the block | whatever_a_peer_does_the_rows_are_right_and_in_time
src/store/cache/cluster/mod.rs | peers | the first reader, which resolves names | RESOLVING in resolve.rs | names_are_resolved_at_once_and_a_slow_one_costs_its_own_time_alone
src/store/cache/cluster/mod.rs | settle | blocks that are on their way | the time of a gift, PATIENCE in peer.rs | whatever_a_peer_does_the_rows_are_right_and_in_time
src/store/cache/cluster/peer.rs | ask | another host's cache | CONNECT and SILENCE, and the time of the bytes | whatever_a_peer_does_the_rows_are_right_and_in_time
src/store/cache/cluster/peer.rs | client | another host's cache, for a connection and its pings | CONNECT and PING | a_peer_that_is_gone_or_answers_nothing_is_passed_by
src/store/cache/cluster/peer.rs | give | other blocks that are given to it | that of try_give for each; none is tried once one has failed | whatever_a_peer_does_the_rows_are_right_and_in_time
src/store/cache/cluster/peer.rs | next | another host's cache | SILENCE | whatever_a_peer_does_the_rows_are_right_and_in_time
src/store/cache/cluster/peer.rs | room | another host's cache | CONNECT and SILENCE | whatever_a_peer_does_the_rows_are_right_and_in_time
src/store/cache/cluster/peer.rs | try_give | another host's cache | the time of the bytes and PATIENCE | whatever_a_peer_does_the_rows_are_right_and_in_time
src/store/cache/cluster/resolve.rs | addresses | the resolver of names | RESOLVING | names_are_resolved_at_once_and_a_slow_one_costs_its_own_time_alone
src/store/cache/cluster/transfer.rs | in_time | another host's cache, for all of a block | the time of the bytes, and MORE while the link is busy | a_block_may_be_late_while_it_has_its_share_of_a_busy_link
src/store/cache/coming.rs | may_begin | other row groups that are fetched ahead | their end; the caller ends with its epoch | a_loader_that_is_left_fetches_nothing_more
src/store/cache/disk.rs | lock | a process that changes the ledger | PATIENCE, then the origin is read | processes_that_share_a_cache_fetch_each_block_once
src/store/cache/hold.rs | fetch_whole | the store, for slices | the store's own | a_fetch_that_fails_or_is_killed_leaves_the_next_one_free
src/store/cache/hold.rs | hold | a process that fetches the same object | its patience without progress | a_fetch_that_fails_or_is_killed_leaves_the_next_one_free
src/store/cache/hold.rs | locked | a process that checks the same file | its patience | a_damaged_copy_is_fetched_again_and_counted
src/store/cache/readers.rs | moved | the consumer, to take a batch | that of whoever awaits it | a_loader_that_is_left_fetches_nothing_more
src/store/cache/shared.rs | claim | a process that fetches the same block | PATIENCE, then the origin is read | processes_that_share_a_cache_fetch_each_block_once
src/store/cache/shared.rs | read | a task that fetches the same block | that of its fetch; a dropped one leaves the next one free | what_fails_at_the_origin_is_an_error_and_nobody_waits_for_it
src/store/cache/shared.rs | settle | blocks that are being written | writes of at most WRITING bytes; the caller's patience | a_disk_that_is_full_or_fails_takes_nothing_and_loses_nothing
src/store/cache/shared.rs | store | blocks that are being written | writes of at most WRITING bytes | a_disk_that_is_full_or_fails_takes_nothing_and_loses_nothing
src/store/child.rs | within | a program that this process started | its limit, and DYING once it is killed | a_program_that_does_not_end_is_killed_and_leaves_nothing
src/store/fuse/mod.rs | detach | the kernel, and programs that have files of the mount | ENDING | a_directory_is_free_after_a_signal_though_a_program_has_a_file_of_it
src/store/fuse/mod.rs | finish | a thread that has ended | none: it has ended | a_directory_is_free_after_a_signal_though_a_program_has_a_file_of_it
src/store/fuse/work.rs | give | requests of the same store | their own ends, by the timeout of the file system | a_store_that_hangs_takes_no_thread_of_others
src/store/lock.rs | take_within | the process that has the lock | its patience | who_waits_gets_it_when_the_holder_ends_or_is_told_who_has_it
";

/// A row of the table.
struct Row<'a> {
    place: (&'a str, &'a str),
    whom: &'a str,
    end: &'a str,
    test: &'a str,
}

fn rows(table: &str) -> Vec<Row<'_>> {
    let lines = table.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| match line.split(" | ").collect::<Vec<_>>()[..] {
            [file, function, whom, end, test] => Row { place: (file, function), whom, end, test },
            _ => panic!("{line}: not five columns"),
        })
        .collect()
}

/// Calls `each` with the place of every wait of a file: the function around it, and the line.
fn waits<'a>(code: &'a str, mut each: impl FnMut(&'a str, usize)) {
    let lines: Vec<&str> = code.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    for (number, line) in lines.iter().enumerate() {
        if line.trim_start().starts_with("use ") || NOT.iter().any(|not| line.contains(not)) {
            continue;
        }
        // Into a channel with an end.
        let hands_over = line.contains(".send(") && line.contains(").await");
        if !hands_over && !WAITS.iter().any(|wait| line.contains(wait)) {
            continue;
        }
        // Formatted code: a function begins further to the left than what is in it.
        let above = lines[..number].iter().rev().filter(|above| indent(above) < indent(line));
        let name = above.filter_map(|above| function(above)).next().or_else(|| function(line));
        each(name.unwrap_or("?"), number + 1);
    }
}

/// The name of the function whose definition begins on this line.
fn function(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    for word in ["pub(crate) ", "pub(super) ", "pub ", "const ", "async ", "unsafe "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let rest = rest.strip_prefix("fn ")?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// The code of a file, without its tests.
fn tested(text: &str) -> String {
    let code = code_only(text);
    let inline = |(at, _): (usize, &str)| {
        let rest = &code[at..];
        let attribute = rest.split(']').next().unwrap_or_default();
        let module =
            rest.find(" {").is_some_and(|brace| rest[..brace].contains("mod ") && !rest[..brace].contains(';'));
        (has_word(attribute, "test") && module).then_some(at)
    };
    let end = code.match_indices("#[cfg(").filter_map(inline).next();
    code[..end.unwrap_or(code.len())].to_owned()
}

/// The files and directories of modules that only tests have: `#[cfg(test)] mod name;`.
fn test_modules(sources: &Sources) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (path, text) in sources {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let inside = match name {
            "mod.rs" | "lib.rs" => directory.to_owned(),
            _ => path.trim_end_matches(".rs").to_owned(),
        };
        let code = code_only(text);
        for (at, _) in code.match_indices("#[cfg(") {
            let Some((attribute, rest)) = code[at..].split_once(']') else { continue };
            let declared = rest.trim_start().strip_prefix("mod ").and_then(|rest| rest.split_once(';'));
            if let Some((module, _)) = declared.filter(|_| has_word(attribute, "test"))
                && module.chars().all(|c| c.is_alphanumeric() || c == '_')
            {
                found.insert(format!("{inside}/{module}"));
            }
        }
    }
    found
}

/// What is wrong with the table, for these sources and these names of tests.
fn wrong(table: &str, sources: &Sources, tests: &BTreeSet<String>) -> Vec<String> {
    let rows = rows(table);
    let mut found = BTreeMap::<(String, String), Vec<usize>>::new();
    let searched = |path: &str| PARTS.iter().any(|part| path == *part || path.starts_with(&format!("{part}/")));
    let only_tests = test_modules(sources);
    let is_test = |path: &str| {
        let path = path.trim_end_matches(".rs");
        only_tests.iter().any(|module| path == module || path.starts_with(&format!("{module}/")))
    };
    for (path, text) in sources.iter().filter(|(path, _)| searched(path) && !is_test(path)) {
        waits(&tested(text), |function, line| {
            found.entry((path.clone(), function.to_owned())).or_default().push(line);
        });
    }
    let listed: BTreeSet<(String, String)> =
        rows.iter().map(|row| (row.place.0.to_owned(), row.place.1.to_owned())).collect();
    let mut problems = Vec::new();
    for ((path, function), lines) in found.iter().filter(|(place, _)| !listed.contains(*place)) {
        problems
            .push(format!("{path}: `{function}` waits (lines {lines:?}) and is not in the table of tests/it/waits.rs"));
    }
    for (path, function) in listed.iter().filter(|place| !found.contains_key(*place)) {
        problems.push(format!("{path}: `{function}` is in the table and does not wait"));
    }
    for row in &rows {
        let (path, function) = row.place;
        if !tests.contains(row.test) {
            problems.push(format!("{path}: `{function}` names a test that there is not: {}", row.test));
        }
        if row.whom.is_empty() || row.end.is_empty() {
            problems.push(format!("{path}: `{function}` does not say whom it waits for, or what ends that"));
        }
        // A deadline of another file is given with its name.
        let named = row.end.split(" in ").nth(1).and_then(|rest| rest.split([',', ' ', ';', ':']).next());
        let elsewhere = named.filter(|name| name.ends_with(".rs"));
        let text: String = match elsewhere {
            Some(name) => sources
                .iter()
                .filter(|(path, _)| path.ends_with(&format!("/{name}")))
                .map(|(_, text)| text.as_str())
                .collect(),
            None => sources.get(path).cloned().unwrap_or_default(),
        };
        let is_constant = |word: &&str| word.len() > 2 && word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        for word in row.end.split(|c: char| !c.is_alphanumeric() && c != '_').filter(is_constant) {
            if !has_word(&text, word) {
                problems.push(format!("{path}: `{function}` ends by {word}, which is not there"));
            }
        }
    }
    problems
}

/// The names of all functions in tests.
fn tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut rust = rust_sources("tests/it");
    rust.extend(rust_sources("src"));
    for text in rust.values() {
        names.extend(text.lines().filter_map(function).map(str::to_owned));
    }
    for text in crate::floors::sources("python/tests", &["py"]).values() {
        let defined = text.lines().filter_map(|line| line.trim_start().strip_prefix("def "));
        names.extend(defined.map(|rest| rest.split('(').next().unwrap_or_default().to_owned()));
    }
    names
}

#[test]
fn every_wait_is_in_the_table() {
    let sources = rust_sources("src");
    let found = wrong(TABLE, &sources, &tests());
    assert!(found.is_empty(), "{}", found.join("\n"));
    let rows = rows(TABLE);
    assert!(rows.len() > 100, "only {} rows", rows.len());
    let mut places: Vec<_> = rows.iter().map(|row| row.place).collect();
    places.dedup();
    assert_eq!(places.len(), rows.len(), "a place has one row");
    assert!(places.is_sorted(), "rows are in order");
}

#[test]
fn planted_waits_and_rows_without_one_are_found() {
    let path = "src/flight/planted.rs";
    let text = "use tokio::time::timeout;\nconst LONGEST: u8 = 1;\nasync fn waits() {\n    // x.recv() in a comment\n    x.recv().await;\n}\n\
                fn timeout(&self) {\n    self.timeout()\n}\n#[cfg(test)]\nmod tests {\n    fn t() {\n        x.join();\n    }\n}\n";
    let sources = Sources::from([(path.to_owned(), text.to_owned())]);
    let tests = BTreeSet::from(["holds_it".to_owned()]);
    let problems = |table: &str| wrong(table, &sources, &tests);
    assert_eq!(problems(&format!("{path} | waits | a peer | LONGEST | holds_it")), Vec::<String>::new());
    for (table, what) in [
        (String::new(), "`waits` waits (lines [5]) and is not"),
        (
            format!("{path} | waits | a peer | LONGEST | holds_it\n{path} | gone | a peer | LONGEST | holds_it"),
            "does not wait",
        ),
        (format!("{path} | waits | a peer | SHORTEST | holds_it"), "ends by SHORTEST"),
        (format!("{path} | waits | a peer | LONGEST | nothing_holds_it"), "a test that there is not"),
    ] {
        let found = problems(&table);
        assert!(found.len() == 1 && found[0].contains(what), "{found:?}");
    }
    // What only tests have is not searched.
    let declared = ("src/flight/mod.rs".to_owned(), "#[cfg(test)]\nmod planted;\n".to_owned());
    let sources_of_tests = Sources::from([declared, (path.to_owned(), text.to_owned())]);
    assert_eq!(wrong("", &sources_of_tests, &tests), Vec::<String>::new());
    // Each word of the rule finds something.
    for wait in WAITS {
        let text = format!("fn f() {{\n    x{wait}\n}}\n");
        let sources = Sources::from([("src/memory/x.rs".to_owned(), text)]);
        assert_eq!(wrong("", &sources, &tests).len(), 1, "{wait}");
    }
}
