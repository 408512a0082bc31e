//! The promises of a loader, each kept by every way to its batches.
//!
//! A promise is one function in `promises`, `positions`, `passes` or `ends`; a way is one function in `ways`. The table is written out once, below,
//! so that each cell is a test by name: `conformance::tcp::a_state_goes_on_at_every_step`.

mod ends;
mod passes;
mod positions;
mod promises;
mod watched;
mod ways;

/// Every promise over every way.
macro_rules! table {
    ($($file:ident::$promise:ident),* $(,)?) => {
        table!(@way local, $($file::$promise),*);
        table!(@way tcp, $($file::$promise),*);
        #[cfg(target_os = "linux")]
        table!(@way shared_memory, $($file::$promise),*);
        table!(@way put, $($file::$promise),*);
        table!(@way decorated, $($file::$promise),*);
        table!(@way mixture, $($file::$promise),*);
        table!(@way simulated_device, $($file::$promise),*);

        /// Every promise in turn, for ways that need a process of their own.
        #[cfg(all(target_os = "linux", feature = "cuda"))]
        fn every_promise(way: &ways::Way) {
            $(
                println!(concat!(stringify!($promise), " over {}"), way.name);
                $file::$promise(way);
            )*
        }
    };
    (@way $way:ident, $($file:ident::$promise:ident),*) => {
        mod $way {
            $(
                #[test]
                fn $promise() {
                    super::$file::$promise(&super::ways::$way());
                }
            )*
        }
    };
}

table!(
    promises::every_row_comes_once_with_its_values,
    promises::the_order_is_the_same_for_every_loader_of_a_plan,
    promises::every_world_has_the_same_steps_and_global_batches,
    promises::tails_are_padded_repeated_or_dropped,
    promises::tails_are_short_or_even_on_any_ranks,
    promises::a_filter_leaves_exactly_its_rows,
    promises::bad_rows_are_errors_or_replaced_and_steps_stay_equal,
    promises::tensors_of_the_consumer_are_filled_or_the_batch_stays,
    positions::a_state_goes_on_at_every_step,
    positions::a_state_goes_on_in_any_world,
    positions::a_foreign_state_changes_nothing,
    positions::what_came_back_comes_again_in_order,
    passes::every_pass_is_an_epoch_of_its_own,
    passes::an_epoch_begins_where_it_is_asked_for,
    passes::a_state_from_the_end_of_an_epoch_has_an_empty_pass,
    passes::a_pass_has_one_end_and_ends_with_the_next,
    passes::a_look_moves_nothing,
    passes::what_a_new_pass_leaves_behind_is_not_consumed,
    ends::an_interrupted_wait_loses_nothing,
    ends::a_wait_that_is_too_long_names_its_culprit,
    ends::a_closed_loader_says_so_and_its_batches_stay,
    ends::an_error_leaves_the_position_and_no_pass_begins_after_it,
    ends::a_loader_is_dropped_while_it_waits,
);

#[cfg(all(target_os = "linux", feature = "cuda"))]
pub(crate) mod on_a_fake_gpu {
    use crate::device::fake::{build, child};

    #[test]
    fn pinned_batches_keep_every_promise() {
        println!("{}", child("conformance::on_a_fake_gpu::pinned", Some(&build(13_000)), &[]));
    }

    #[test]
    fn batches_of_a_gpu_keep_every_promise() {
        println!("{}", child("conformance::on_a_fake_gpu::gpu", Some(&build(13_000)), &[]));
    }

    pub(crate) fn pinned() {
        super::every_promise(&super::ways::at_device("pinned"));
    }

    pub(crate) fn gpu() {
        super::every_promise(&super::ways::at_device("cuda"));
    }
}
