"""The ways in which private training can lie, the tests that guard each, and how those were seen to fail.

`docs/traps.md` is made of this table by ``python -m tests.test_traps``. ``broken_by`` says what was broken, for a
moment and in a copy of the library, when tests of ``guarded_by`` were seen to fail; "in the test" where a test contains
its own broken version. What was not tried, or cannot be, is said there too.
"""

import ast
import functools
import pathlib
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "traps.md"


class Trap(NamedTuple):
    """One trap: what goes wrong, the node ids of the tests that would see it, and the mutations that they did see."""

    what: str
    guarded_by: tuple[str, ...]
    broken_by: str


TRAPS = {
    1: Trap(
        "An empty Poisson batch raises, or divides by zero.",
        (
            "tests/clipping/test_clipped_grad.py::test_all_padding_and_empty_batches_give_zeros",
            "tests/transforms/test_privatize.py::test_noise_does_not_depend_on_the_realised_batch",
            "tests/training/test_loop.py::test_the_noise_does_not_depend_on_who_is_in_the_batch",
            "tests/training/test_loop.py::test_an_empty_data_set_gives_noise_of_the_planned_size",
        ),
        "the branch for empty batches removed from clipped_grad; the training step divides by the number of real rows",
    ),
    2: Trap(
        "Dividing by the realised batch size makes the noise a function of who was drawn.",
        (
            "tests/training/test_loop.py::test_the_noise_does_not_depend_on_who_is_in_the_batch",
            "tests/transforms/test_privatize.py::test_noise_does_not_depend_on_the_realised_batch",
        ),
        "the training step divides by max(1, number of real rows)",
    ),
    3: Trap(
        "The divisor is derived from the private number of examples.",
        (
            "tests/training/test_loop.py::test_the_divisor_does_not_follow_the_size_of_the_data",
            "tests/training/test_plan.py::test_the_divisor_and_the_probability_are_public_constants",
        ),
        "the training step divides by sampling_prob times the number of real examples",
    ),
    4: Trap(
        "Batches are drawn in another way than is accounted for.",
        (
            "tests/training/test_loop.py::test_a_step_is_the_written_out_step",
            "tests/training/test_loop.py::test_scan_equals_steps_equals_a_loader",
            "tests/training/test_plan.py::test_pieces_that_disagree_are_refused",
            "tests/sampling/test_poisson.py::test_marginal_and_pairwise_inclusion",
            "tests/sampling/test_without_replacement.py::test_marginal_and_pairwise_inclusion",
            "tests/sampling/test_poisson_scheme.py::test_device_host_and_the_long_form_draw_one_batch",
            "tests/transforms/test_poisson_argument.py::test_it_is_its_numbers",
        ),
        "the step walks through one shuffled order; one coin for all rows; a plan's JSON is read without comparing "
        "its pieces; Poisson(...) records another probability than it draws with, draws every step with one key, or "
        "gives the host another probability",
    ),
    5: Trap(
        "Add-or-remove noise is used for a replace-one statement: a factor of two.",
        (
            "tests/clipping/test_rules.py::test_neighbours_of_every_relation_reach_the_sensitivity_and_no_more",
            "tests/clipping/test_clipped_grad.py::test_sensitivity_under_every_relation",
            "tests/clipping/test_rules.py::test_the_stated_bounds",
        ),
        "sensitivity_factor 1 for every relation",
    ),
    6: Trap(
        "The stated sensitivity is not the largest change that an example can make.",
        (
            "tests/clipping/test_rules.py::test_no_row_beats_the_sensitivity",
            "tests/clipping/test_sum_bound.py::test_adding_a_row_moves_the_sum_by_at_most_the_sensitivity",
            "tests/clipping/test_sum_bound.py::test_large_batch_in_float32_keeps_the_bound",
            "tests/training/test_loop.py::test_neighbours_differ_by_one_clipped_gradient",
        ),
        "PerLeaf clips each leaf to all of C; rows clipped to C instead of C / (1 + slack)",
    ),
    7: Trap(
        "Half precision: rounded sums move too far, norms overflow, noise has few values or vanishes.",
        (
            "tests/clipping/test_sum_bound.py::test_adding_a_row_moves_the_sum_by_at_most_the_sensitivity",
            "tests/clipping/test_sum_bound.py::test_gradients_whose_squares_overflow_contribute_the_clip_norm",
            "tests/clipping/test_clipped_grad.py::test_half_precision_parameters_give_float32_sums",
            "tests/transforms/test_privatize.py::test_noise_survives_any_gradient_dtype",
            "tests/transforms/test_privatize.py::test_half_precision_leaves_get_the_noise_of_float32_ones",
            "tests/transforms/test_noise.py::test_add_gaussian_noise_is_float32_and_differs_by_step_and_leaf",
        ),
        "the sum rounded to the parameters' type; squares added in the gradient's own type; noise rounded to the "
        "leaf's type; the noisy sum rounded to it",
    ),
    8: Trap(
        "One NaN or infinite example poisons the sum, or passes the clipping.",
        (
            "tests/clipping/test_sum_bound.py::test_a_non_finite_row_equals_that_row_removed",
            "tests/clipping/test_clipped_grad.py::test_padding_content_never_matters",
            "tests/clipping/test_rowwise.py::test_info_says_which_rows_are_not_finite",
        ),
        "every row kept whatever its norm; such rows multiplied by zero instead of replaced",
    ),
    9: Trap(
        "The square of a finite gradient overflows, and the example is dropped or becomes NaN.",
        (
            "tests/clipping/test_sum_bound.py::test_gradients_whose_squares_overflow_contribute_the_clip_norm",
            "tests/clipping/test_sum_bound.py::test_tiny_gradients_pass_and_tiny_clip_norms_hold",
        ),
        "squares taken without scaling by the largest entry first",
    ),
    10: Trap(
        "One key for several steps, leaves, hosts or runs: noise that can be subtracted.",
        (
            "tests/transforms/test_privatize.py::test_steps_leaves_and_keys_give_independent_noise",
            "tests/transforms/test_noise.py::test_add_gaussian_noise_is_float32_and_differs_by_step_and_leaf",
            "tests/transforms/test_privatize.py::test_no_key_has_a_default",
            "tests/training/test_run.py::test_a_key_used_twice",
            "tests/training/test_processes.py::test_several_processes_make_the_run_of_one_and_survive_a_kill",
            "tests/training/test_run_folder.py::test_a_key_used_for_other_values",
        ),
        "the step not folded into the key; one key for all leaves; a default key; a used key not refused; a key of "
        "its own for every process (which JAX itself refuses, too); "
        "the initial state left out of a run's fingerprint",
    ),
    11: Trap(
        "A weak seed: 31 bits that a generator stretches.",
        (
            "tests/transforms/test_noise.py::test_every_bit_of_a_fresh_key_is_from_the_systems_entropy",
            "tests/transforms/test_noise.py::test_fresh_keys_differ",
            "tests/transforms/test_keys.py::test_a_fresh_key_in_a_traced_function_is_refused",
        ),
        "fresh_key made of 31 random bits and split. Guarded is that every bit of the key (threefry: 64) is entropy; "
        "there is no noise that combines two keys; "
        "fresh_key without a look at the trace",
    ),
    12: Trap(
        "A restart repeats noise on another gradient, or forgets what was spent.",
        (
            "tests/training/test_run.py::test_interrupted_equals_uninterrupted",
            "tests/training/test_run.py::test_on_another_machine_the_lost_chunk_is_charged_and_gets_new_keys",
            "tests/training/test_run.py::test_other_data_or_another_learning_rate_is_another_fingerprint",
            "tests/training/test_run.py::test_a_full_disk_loses_nothing",
            "tests/training/test_run.py::test_kill_9_at_random",
            "tests/training/test_run.py::test_state_without_a_ledger_is_refused",
            "tests/training/test_run_folder.py::test_a_restored_backup_with_a_changed_row_gets_new_keys",
            "tests/training/test_run_folder.py::test_a_state_changed_by_hand_is_not_repeated_with_the_same_noise",
        ),
        "the journal written after the chunk; fingerprints not compared; the data left out of them; lost steps "
        "charged but the old key kept; a state without ledger read as an empty one; "
        "keys changed only where lines are lost",
    ),
    13: Trap(
        "Every device adds its own noise.",
        (
            "tests/training/test_devices.py::test_the_noise_does_not_depend_on_the_devices",
            "tests/training/test_devices.py::test_the_run_does_not_depend_on_the_devices",
            "tests/training/test_processes.py::test_several_processes_make_the_run_of_one_and_survive_a_kill",
        ),
        "noise with a key of the device's index added to each device's sum before the all-reduce",
    ),
    14: Trap(
        "The all-reduce over devices is in half precision.",
        (
            "tests/clipping/test_mesh.py::test_one_all_reduce_of_the_parameters_in_float32",
            "tests/clipping/test_mesh.py::test_the_sum_does_not_depend_on_the_devices",
        ),
        "sums cast to bfloat16 for the all-reduce (a CPU's compiled program widens them again, so what is asked of "
        "the compiler is looked at, too)",
    ),
    15: Trap(
        "A large Poisson batch is truncated to fit.",
        (
            "tests/sampling/test_host.py::test_a_batch_that_does_not_fit_is_refused",
            "tests/training/test_loop.py::test_a_batch_that_does_not_fit_stops_the_run",
            "tests/sampling/test_poisson.py::test_a_batch_above_the_capacity_is_never_truncated",
        ),
        "the host's batches cut at the capacity; the step takes every batch as fitting; such a batch flagged and "
        "still trained on; "
        "poisson_sample that marks no row as padding where more were drawn",
    ),
    16: Trap(
        "Accounting in float32: NaN or wrong digits at ordinary points.",
        (
            "tests/accounting/test_gdp.py::test_delta_against_sixty_digits",
            "tests/accounting/test_gdp.py::test_inversions_against_sixty_digits",
        ),
        "the arguments of the accounting functions made float32, and delta computed in float32 (overflows, which are "
        "errors in the tests); the textbook difference, in the test",
    ),
    17: Trap(
        "The bound is of one direction of neighbours only.",
        (
            "tests/accounting/numeric/test_honesty.py::test_every_composed_reference_row_is_inside",
            "tests/accounting/numeric/test_honesty.py::test_every_direction_of_the_reference_rows_is_inside",
            "tests/accounting/numeric/test_honesty.py::test_one_step_is_the_closed_form_in_both_directions",
            "tests/accounting/numeric/test_curve.py::test_one_step_is_the_symmetrised_subsampled_gaussian",
        ),
        'only the direction "add" composed. With only "remove" nothing fails: it was the larger one at every '
        "reference row and at 36 other runs, so the two directions are tested one by one",
    ),
    18: Trap(
        "Negative epsilons, and root finders that fail at ordinary parameters.",
        (
            "tests/accounting/test_gdp.py::test_edges",
            "tests/accounting/test_gdp.py::test_epsilon_round_trip",
            "tests/accounting/numeric/test_honesty.py::test_zero_where_delta_is_large_enough",
            "tests/accounting/numeric/test_honesty.py::test_corners_are_finite_and_ordered",
            "tests/accounting/numeric/test_honesty.py::test_beyond_the_stated_range_nothing_is_nan",
        ),
        "nothing held at zero in the inversion of the Gaussian, nor in the certified bracket (there it takes all the "
        "places at once). Fallbacks of the bracket replaced by infinity were not seen: no point of the tests needs "
        "them",
    ),
    19: Trap(
        "Changing noise or sampling probability cannot be accounted for, or is merged.",
        (
            "tests/accounting/test_certified.py::test_equal_phases_agree_with_one_event",
            "tests/accounting/test_certified.py::test_different_phases_lie_between_their_extremes",
            "tests/transforms/test_privatize.py::test_scheduled_noise_multiplier_is_recorded_by_phase_without_recompiling",
        ),
        "only the first phase of a ledger accounted for; the compiled ledger merges unequal steps",
    ),
    20: Trap(
        "Gradient accumulation adds noise at every microbatch, or counts each as a step.",
        (
            "tests/transforms/test_accumulate.py::test_any_number_of_microbatches_gives_the_step_of_one_big_batch",
            "tests/transforms/test_accumulate.py::test_in_between_nothing_moves_and_nothing_is_recorded",
        ),
        "every microbatch released with its own noise and event",
    ),
    21: Trap(
        "Means over microbatches are averaged, which changes the sensitivity.",
        (
            "tests/transforms/test_accumulate.py::test_any_number_of_microbatches_gives_the_step_of_one_big_batch",
            "tests/clipping/test_clipped_grad.py::test_every_strategy_is_the_definition",
        ),
        "the mean of the accumulated sums released; the mean over the chunks of a scan",
    ),
    22: Trap(
        "A layer lets one example reach the gradients of others (BatchNorm, routing).",
        (
            "tests/clipping/test_clipped_grad.py::test_no_row_moves_the_gradient_of_another",
            "tests/clipping/test_clipped_grad.py::test_rows_do_not_influence_each_other",
            "tests/clipping/test_clipped_grad.py::test_bad_input_is_refused_with_advice",
            "tests/clipping/test_rowwise.py::test_batch_norm_of_nnx_is_named",
            "tests/clipping/test_rowwise.py::test_batch_norm_of_linen_takes_the_mean_of_one",
        ),
        "a thousandth of the mean row subtracted from per-example gradients; the mapped axis given a name (such a "
        "loss is then still refused, for another reason)",
    ),
    23: Trap(
        "Running statistics carry private data out.",
        (
            "tests/training/test_loop.py::test_running_statistics_of_nnx",
            "tests/training/test_loop.py::test_bad_input",
            "tests/clipping/test_rowwise.py::test_statistics_among_the_parameters",
            "tests/test_nnx.py::test_what_the_forward_pass_writes_is_refused",
        ),
        "statistics among the parameters accepted; what the forward pass of a module writes not looked at",
    ),
    24: Trap(
        "Frozen parameters are noised, or count in the norm; tied ones count twice.",
        (
            "tests/clipping/test_clipped_grad.py::test_frozen_and_integer_leaves_are_zeros_outside_the_norm",
            "tests/transforms/test_privatize.py::test_frozen_and_integer_leaves_leave_as_exact_zeros",
            "tests/transforms/test_composition.py::test_frozen_parameters_stay_as_they_are_and_weight_decay_is_masked",
            "tests/transforms/test_composition.py::test_a_tied_leaf_is_clipped_once_with_its_true_norm",
            "tests/clipping/test_clipped_grad.py::test_tied_parameters_are_clipped_once_with_their_true_norm",
            "tests/test_nnx.py::test_a_filter_says_what_is_trained",
        ),
        "noise on frozen leaves; frozen leaves differentiated; of a leaf used twice only one use kept; all variables "
        "of a module trained; frozen ones shown to the optimizer",
    ),
    25: Trap(
        "Sparse gradients: rows that no example touched get no noise and show it.",
        ("tests/transforms/test_privatize.py::test_every_row_of_an_embedding_is_noised",),
        "noise only where the sum is not zero",
    ),
    26: Trap(
        "Augmented copies count as examples, and the bound grows with their number.",
        (
            "tests/clipping/test_augment.py::test_gradients_are_averaged_over_copies_before_clipping",
            "tests/clipping/test_augment.py::test_one_example_moves_the_sum_by_at_most_the_clip_norm_whatever_the_multiplicity",
        ),
        "copies' losses added instead of averaged (which leaves the bound as it is); copies as rows of the batch, in "
        "the test",
    ),
    27: Trap(
        "The budget of adaptive clipping's own release is not counted.",
        (
            "tests/transforms/test_adaptive.py::test_the_ledger_holds_the_joint_event",
            "tests/transforms/test_adaptive.py::test_a_traced_noise_multiplier_is_recorded_from_below",
            "tests/transforms/test_adaptive.py::test_no_neighbour_moves_both_releases_by_more_than_is_recorded",
            "tests/accounting/test_events.py::test_quantile_clipping_is_a_joint_event",
        ),
        "the sum's own noise multiplier recorded instead of the joint one",
    ),
    28: Trap(
        "Gradients are changed between clipping and noise.",
        (
            "tests/transforms/test_privatize.py::test_both_ways_of_clipping_give_the_same_step",
            "tests/training/test_loop.py::test_neighbours_differ_by_one_clipped_gradient",
            "tests/training/test_loop.py::test_a_step_is_the_written_out_step",
            "tests/transforms/test_privatize.py::test_unclipped_or_per_example_gradients_are_refused",
            "tests/transforms/test_privatize.py::test_transforms_with_a_state_before_the_noise_have_no_ledger",
            "tests/transforms/test_origin.py::test_a_transformation_between_clip_and_noise_is_refused",
        ),
        "dpsgd and the training step double the clipped sum; shapes not compared with the parameters'; "
        "privatize without its look at where the sum came from",
    ),
    29: Trap(
        "An optimistic audit finds a leak in null scores.",
        (
            "tests/auditing/test_one_run.py::test_null_scores_give_nothing",
            "tests/auditing/test_one_run.py::test_several_numbers_of_guesses_share_the_confidence",
            "tests/auditing/test_one_run.py::test_exact_coverage_of_epsilon",
            "tests/auditing/test_one_run.py::test_exact_coverage_of_mu",
            "tests/auditing/test_one_run.py::test_ties_tell_nothing_even_in_a_sorted_file",
            "tests/auditing/test_many_runs.py::test_null_scores_give_nothing",
            "tests/auditing/test_many_runs.py::test_exact_coverage_of_gaussian_mechanisms_at_every_threshold",
            "tests/auditing/test_many_runs.py::test_the_best_threshold_on_the_same_scores_would_not_cover",
            "tests/auditing/test_step.py::test_a_sound_release_is_refuted_no_more_often_than_stated",
            "tests/auditing/test_p_values.py::test_sound_noise_passes",
            "tests/auditing/test_planted_bugs.py::test_no_false_alarm_in_twenty_seeds",
        ),
        "the best number of guesses reported at the whole confidence; several numbers that do not share it; delta "
        "left out; the share of right guesses taken for a bound; ties by position; the threshold chosen on the scores "
        "that are judged; each error rate at the whole confidence",
    ),
    30: Trap(
        "Calibrated for one sampling probability, trained with another.",
        (
            "tests/training/test_plan.py::test_calibrated_then_verified",
            "tests/training/test_loop.py::test_a_step_is_the_written_out_step",
            "tests/training/test_recorded.py::test_a_training_draws_adds_and_records_what_it_did",
        ),
        "calibrated at half the sampling probability; trained at twice it",
    ),
    31: Trap(
        "Noise with a short tail: outputs that only one of two neighbours can produce.",
        (
            "tests/transforms/test_noise.py::test_noise_of_extreme_words_is_beyond_nine_standard_deviations",
            "tests/transforms/test_noise.py::test_the_largest_value_is_beyond_nine_standard_deviations",
            "tests/transforms/test_noise.py::test_inversion_is_accurate_over_the_whole_range",
            "tests/transforms/test_noise.py::test_values_beyond_the_reach_of_float32_uniforms_occur",
            "tests/training/test_plan.py::test_a_plan_without_enough_noise_says_that_it_is_not_private",
            "tests/training/test_plan.py::test_statement_has_every_item",
            "tests/auditing/test_planted_bugs.py::test_a_small_planted_bug_fails_its_check",
        ),
        "standard_normal replaced by jax.random.normal (every other quick test of the noise passed); the plan's check "
        "of the tail removed. The slow test of 2^32 draws was not run broken: no value would reach 5.5, where it "
        "wants 163",
    ),
    32: Trap(
        "The sampling probability is rounded up by float32 uniforms.",
        (
            "tests/sampling/test_poisson.py::test_small_probabilities_are_not_rounded_up",
            "tests/sampling/test_poisson.py::test_words_below_the_accounted_threshold_are_included",
            "tests/training/test_plan.py::test_what_follows_from_the_plan_is_what_is_accounted_for",
        ),
        "a float32 uniform compared with p (at p = 1e-6, 7% more, no frequency test of seconds sees it: at 2^-26 it "
        "is eight times p); the Event of a plan holds the p that was asked for",
    ),
    33: Trap(
        "What happens when a padded batch overflows is not in delta.",
        (
            "tests/training/test_plan.py::test_what_follows_from_the_plan_is_what_is_accounted_for",
            "tests/training/test_loop.py::test_a_step_is_the_written_out_step",
            "tests/training/test_loop.py::test_a_batch_that_does_not_fit_stops_the_run",
            "tests/accounting/test_certified.py::test_overflow_is_paid_and_the_bracket_contains_both_extremes",
            "tests/transforms/test_poisson_argument.py::test_the_ledgers_epsilon_is_that_of_the_run",
        ),
        "tau left out of the plan's Event; out of the ledger; out of the certified bracket; privatize(batches=) "
        "records no overflow, or that of the whole run at each step",
    ),
    34: Trap(
        "The size of the data shows, or a data set is refused for its size.",
        (
            "tests/training/test_loop.py::test_size_of_the_data_does_not_show",
            "tests/training/test_loop.py::test_a_public_number_must_be_met",
            "tests/training/test_plan.py::test_statement_of_other_plans",
            "tests/sampling/test_host.py::test_rows_beyond_the_real_ones_are_never_drawn",
        ),
        "smaller data refused; not padded; a public number not compared",
    ),
    35: Trap(
        "Stopping early by looking, and reporting the steps that were made.",
        (
            "tests/training/test_loop.py::test_it_stops_at_the_planned_maximum",
            "tests/training/test_plan.py::test_statement_has_every_item",
            "tests/training/test_run.py::test_a_run_that_stopped_states_what_was_planned_and_what_was_made",
        ),
        "the step goes on beyond the planned maximum; a statement of the steps that were made alone",
    ),
    36: Trap(
        "Private diagnostics (training loss, gradient norms) are released as if covered.",
        (
            "tests/sweeps/test_training.py::test_public_records",
            "tests/sweeps/test_training.py::test_private_diagnostics_are_apart_and_marked",
            "tests/training/test_plan.py::test_statement_has_every_item",
        ),
        "a training loss among the public metrics; the diagnostics' file without its mark; the statement without what "
        "was released",
    ),
    37: Trap(
        "The symmetrised curve is composed, instead of each direction.",
        ("tests/tradeoff/test_compose.py::test_asymmetric_curves_are_composed_per_direction",),
        "each curve symmetrised before it is composed",
    ),
    38: Trap(
        "One key for several configurations of a sweep, or several seeds' runs.",
        (
            "tests/transforms/test_privatize.py::test_a_key_shared_by_the_configurations_of_a_sweep_is_refused",
            "tests/transforms/test_privatize.py::test_a_shared_key_behind_a_batched_predicate_gives_nan",
            "tests/training/test_loop.py::test_a_sweep_is_one_program",
            "tests/training/test_run.py::test_a_key_used_twice",
            "tests/sweeps/test_training.py::test_unseeded_keys_differ_in_every_stream",
            "tests/transforms/test_keys.py::test_one_key_for_the_configurations_of_a_loop_is_refused",
            "tests/transforms/test_keys.py::test_whatever_draws_refuses_a_key_that_is_a_constant_of_a_loop",
            "tests/transforms/test_keys.py::test_configurations_over_a_mesh_that_share_a_key_are_refused",
        ),
        "a shared key accepted under vmap; the configuration left out of a seed's keys; a used key not refused; "
        "no check but that of vmap, so that lax.map, scan, fori_loop, while_loop and shard_map were accepted",
    ),
    39: Trap(
        "Joint releases from one batch are accounted as independent events.",
        (
            "tests/transforms/test_privatize.py::test_two_ledgers_in_one_state_are_refused",
            "tests/training/test_loop.py::test_an_optimizer_that_is_private_itself",
            "tests/test_ledger.py::test_joint_event_is_the_one_of_the_combined_noise",
            "tests/transforms/test_adaptive.py::test_no_neighbour_moves_both_releases_by_more_than_is_recorded",
        ),
        "two ledgers in one state accepted; the smaller noise multiplier taken for the joint one",
    ),
    40: Trap(
        "A mask around the private transform lets leaves out without noise.",
        (
            "tests/transforms/test_privatize.py::test_masks_around_the_private_transform_are_refused",
            "tests/transforms/test_adaptive.py::test_masks_around_it_are_refused",
        ),
        "masked leaves not looked for",
    ),
    41: Trap(
        "A float32 sum depends on its order by more than the sensitivity.",
        (
            "tests/clipping/test_sum_bound.py::test_large_batch_in_float32_keeps_the_bound",
            "tests/clipping/test_sum_bound.py::test_the_compensated_tree_is_exact_to_one_rounding",
            "tests/clipping/test_sum_bound.py::test_a_batch_too_large_for_the_bound_is_refused",
            "tests/transforms/test_accumulate.py::test_the_sum_of_many_is_rounded_once",
            "tests/transforms/test_accumulate.py::test_an_added_row_that_moves_all_others_keeps_the_bound",
        ),
        "the error of each addition dropped; no limit on the slack",
    ),
    42: Trap(
        "Wrappers that roll state back repeat noise and forget steps.",
        ("tests/transforms/test_wrappers.py::test_a_ledger_is_read_only_in_wrappers_that_keep_what_is_inside",),
        "a ledger read through such wrappers",
    ),
    43: Trap(
        "A general accumulation wrapper around the private transform halves the update, or fails.",
        (
            "tests/transforms/test_accumulate.py::test_optax_multisteps_is_refused_with_advice",
            "tests/transforms/test_wrappers.py::test_a_ledger_is_read_only_in_wrappers_that_keep_what_is_inside",
        ),
        "a ledger read through such wrappers",
    ),
    44: Trap(
        "Keys of the rbg kind under vmap: all configurations draw from the first one's key.",
        (
            "tests/transforms/test_keys.py::test_under_vmap_every_configuration_draws_what_its_key_draws_alone",
            "tests/transforms/test_keys.py::test_a_configuration_that_stands_still_does_not_stop_the_noise_of_the_others",
            "tests/transforms/test_keys.py::test_nothing_else_draws_with_jax_random",
        ),
        "draws made with jax.random directly: rows after a finished one repeat its noise",
    ),
    45: Trap(
        "A primitive or a derivative rule of the loss sees all rows at once: callbacks, custom_vmap, collectives.",
        (
            "tests/clipping/test_rowwise.py::test_a_primitive_that_sees_all_rows_is_refused_by_name",
            "tests/clipping/test_rowwise.py::test_every_strategy_and_entry_point_refuses",
            "tests/clipping/test_rowwise.py::test_a_collective_over_the_users_shard_map_is_refused",
            "tests/clipping/test_rowwise.py::test_a_key_made_from_an_example_whose_bits_depend_on_row_zero",
        ),
        "the loss not read",
    ),
    46: Trap(
        "Labels that are not named as batched come whole to every example.",
        ("tests/clipping/test_rowwise.py::test_an_argument_that_should_have_been_batched",),
        "shared arrays of the batch's length accepted",
    ),
    47: Trap(
        "The loss closes over the private data.",
        (
            "tests/clipping/test_rowwise.py::test_a_loss_that_closes_over_the_batch",
            "tests/clipping/test_rowwise.py::test_a_closure_inside_a_compiled_step",
            "tests/clipping/test_rowwise.py::test_private_training_refuses_a_loss_that_closes_over_the_data_set",
        ),
        "constants of the traced loss not looked at",
    ),
    48: Trap(
        "What is noised is not a sum of the clip that the noise is scaled to: a mean gradient, another clip's sum.",
        (
            "tests/transforms/test_origin.py::test_the_gradient_of_a_mean_loss_is_refused",
            "tests/transforms/test_origin.py::test_the_sum_of_another_clip_is_refused",
            "tests/transforms/test_origin.py::test_one_correct_jitted_step_does_not_open_the_door",
            "tests/transforms/test_accumulate.py::test_a_change_of_the_accumulated_sum_is_refused",
        ),
        "privatize without its look at where the sum came from",
    ),
    49: Trap(
        "Accumulated sums are charged for the rows of earlier ones.",
        (
            "tests/transforms/test_accumulate.py::test_the_factor_is_that_of_the_sums_that_were_added",
            "tests/transforms/test_accumulate.py::test_a_compiled_update_does_not_guess_how_many_rows_it_will_be_given",
        ),
        "the factor from the largest sum so far, fixed when update is traced",
    ),
    50: Trap(
        "Two processes, or two objects, continue one run and take a step twice with one noise.",
        (
            "tests/training/test_run_folder.py::test_a_folder_that_another_process_has_open",
            "tests/training/test_run_folder.py::test_the_run_that_was_resumed_last_has_the_folder",
            "tests/training/test_run_folder.py::test_a_journal_that_somebody_else_has_written",
            "tests/training/test_run_folder.py::test_two_processes_resume_one_folder",
        ),
        "no lock of the folder",
    ),
    51: Trap(
        "The keys of the noise can be read by other users.",
        (
            "tests/training/test_run_folder.py::test_what_is_not_for_release_is_private_whatever_the_umask",
            "tests/sweeps/test_records.py::test_diagnostics_are_readable_by_their_owner_only",
        ),
        "files made with the umask's mode",
    ),
    52: Trap(
        "A journal whose numbers were changed forgets steps.",
        ("tests/training/test_run_folder.py::test_every_changed_line_of_the_journal_is_refused",),
        "lines without a checksum: num_steps of 0, -5 and 100000 were taken",
    ),
    53: Trap(
        "A bound is computed from a difference that a quotient has rounded away.",
        (
            "tests/accounting/numeric/test_honesty.py::test_one_step_at_a_delta_next_to_its_sampling_probability",
            "tests/tradeoff/test_duality.py::test_epsilon_of_a_subsampled_gaussian_at_a_delta_next_to_the_sampling_probability",
        ),
        "1 - delta / p taken from the rounded quotient (24 of 70 rows outside their bracket)",
    ),
    54: Trap(
        "What is priced has another number of steps than what is run.",
        ("tests/accounting/test_length.py::test_the_plan_and_the_command_line_count_the_same_steps",),
        "round() for halves in the command line: 62 and 63 steps",
    ),
    55: Trap(
        "An estimate that nothing confirms is printed as a number.",
        ("tests/accounting/numeric/test_honesty.py::test_hard_places_hold_the_truth",),
        "the guess of the search taken for both ends of the bracket (0.1 where more than 5e5 is true)",
    ),
    56: Trap(
        "A number is rounded below what was certified where it is printed.",
        (
            "tests/test_cli.py::test_the_printed_noise_meets_the_target",
            "tests/test_cli.py::test_what_a_person_may_copy_is_rounded_to_the_safe_side",
        ),
        "six digits to nearest",
    ),
    57: Trap(
        "Compiled programs on disk: others write code into the folder, or read a key that was compiled in.",
        (
            "tests/test_compilation_cache.py::test_a_folder_that_others_can_write_to_is_not_used",
            "tests/test_compilation_cache.py::test_programs_are_kept_in_the_users_own_folder_and_a_damaged_one_costs_only_time",
        ),
        "owner and permissions not checked; the folder made with 0755",
    ),
    58: Trap(
        "Examples that oppose each other are clipped as a sum, which they can move by twice the norm.",
        ("tests/auditing/test_planted_bugs.py::test_a_small_planted_bug_fails_its_check",),
        "the clip after the sum, in the test",
    ),
    59: Trap(
        "A run without noise, or with too little, reads as if it were private.",
        (
            "tests/training/test_plan.py::test_a_plan_without_enough_noise_says_that_it_is_not_private",
            "tests/test_cli.py::test_a_run_without_noise_is_said_not_to_be_private",
            "tests/transforms/test_privatize.py::test_a_concrete_noise_multiplier_of_zero_adds_nothing_and_is_recorded",
        ),
        "not tried: the tests were written with the statement",
    ),
    60: Trap(
        "A clip rule of one's own passes the bound it states, looks at other rows, or is NaN for some.",
        (
            "tests/clipping/test_own_rules.py::test_a_rule_is_its_definition_in_both_clips",
            "tests/clipping/test_own_rules.py::test_no_row_beats_the_bound",
            "tests/clipping/test_own_rules.py::test_a_sweep_over_a_traced_clip_norm_compiles_once",
            "tests/clipping/test_own_rules.py::test_a_plan_is_saved_and_loaded_with_it",
        ),
        "the limit in `bounded_coefficients` removed; `rule.coefficient` on the whole vector; without the NaN drop",
    ),
    61: Trap(
        "A user's primitive whose vmap rule mixes rows is accepted in silence.",
        (
            "tests/clipping/test_primitives.py::test_an_unknown_primitive_is_refused_until_it_is_vouched_for",
            "tests/clipping/test_primitives.py::test_a_name_is_taken_once",
        ),
        "`is_vouched_for` returned True for every name; the check of taken names removed",
    ),
    62: Trap(
        "Positions that cancel pass unclipped, as the norm from Gram matrices is clamped at zero.",
        (
            "tests/clipping/test_factors_sound.py::test_positions_that_cancel_do_not_hide_a_gradient",
            "tests/clipping/test_patterns.py::test_taps_give_the_definition",
        ),
        "`Outer.compact` kept several positions in factors",
    ),
    63: Trap(
        "A convolution's gradient, written by hand for speed, is wrong in its padding or its kernel.",
        (
            "tests/clipping/test_convolution.py::test_values_and_gradients_are_those_of_jax",
            "tests/clipping/test_convolution.py::test_convolutions_in_loops_have_derivatives_of_every_order",
        ),
        "`before = reach - low`; the reversal left out; a kernel gradient one per cent too large",
    ),
    64: Trap(
        "The time of a step tells the size of its private batch; the option for constant work is lost.",
        (
            "tests/clipping/test_clipped_grad.py::test_chunks_of_padding_are_skipped_unless_the_work_is_constant",
            "tests/training/test_loop.py::test_constant_work_trains_the_same",
        ),
        "`skips` without `constant_work`; `constant_work` not passed to `clipped_grad`",
    ),
    65: Trap(
        "An accumulated sum has more rows than it was charged for.",
        ("tests/transforms/test_accumulate.py::test_a_sum_of_more_rows_than_were_told_is_refused",),
        "the check of `recorded.num_rows` against `microbatch_rows` in `charge_of_sum` removed",
    ),
    66: Trap(
        "A row that overflows reaches the others in a grouped convolution, by zero times infinity.",
        (
            "tests/clipping/test_row_map.py::test_a_row_that_overflows_is_dropped_alone",
            "tests/clipping/test_row_map.py::test_a_row_that_overflows_in_the_gradient_is_dropped_alone",
        ),
        "`_makes_groups` returned False: eleven cases of these fail",
    ),
    67: Trap(
        "A batch that is cut to its capacity is accounted for as a Poisson batch.",
        (
            "tests/accounting/test_truncated.py::test_poisson_accounting_would_be_wrong",
            "tests/sampling/test_truncated.py::test_keeping_the_first_rows_would_be_noticed",
        ),
        "the Poisson bound in place of the truncated one, the first rows kept: asserted in these",
    ),
    68: Trap(
        "An epoch in which every example takes part once is accounted for as Poisson batches.",
        (
            "tests/accounting/test_allocation_events.py::test_poisson_accounting_would_be_wrong",
            "tests/auditing/test_allocation_epoch.py::test_allocation_accounted_as_poisson_sampling_is_refuted",
        ),
        "the Poisson curve in place of the one of allocation: asserted in these",
    ),
    69: Trap(
        "A run of allocation that goes on with another key, or with rows that moved, shows an example twice in an "
        "epoch.",
        (
            "tests/training/test_epochs.py::test_on_another_machine_no_example_takes_part_twice_in_an_epoch",
            "tests/training/test_epochs.py::test_with_rows_that_moved_it_does_not_go_on",
        ),
        "a new sampling key on resuming: the first of these fails",
    ),
    70: Trap(
        "Shuffled batches are accounted for as Poisson batches or random allocation: what is released about the others "
        "tells where the target is.",
        (
            "tests/accounting/test_shuffled.py::test_allocation_or_poisson_accounting_would_be_wrong",
            "tests/accounting/test_shuffled.py::test_no_data_set_is_above_the_upper_end",
            "tests/auditing/test_shuffled_epoch.py::test_shuffled_batches_accounted_as_something_else_are_refuted",
        ),
        "the curves of both in place of the one without amplification: asserted in these",
    ),
    71: Trap(
        "A run on shuffled batches that goes on with another permutation shows an example twice in an epoch.",
        (
            "tests/training/test_epochs.py::test_on_another_machine_no_example_takes_part_twice_in_an_epoch",
            "tests/training/test_epochs.py::test_with_rows_that_moved_it_does_not_go_on",
        ),
        "a new sampling key on resuming: the first of these fails",
    ),
    72: Trap(
        "A run with correlated noise goes on with new keys: its later steps take back noise that was never added.",
        (
            "tests/training/test_correlated.py::test_a_chunk_whose_bits_are_not_sure_is_refused",
            "tests/training/test_correlated.py::test_a_state_that_was_put_back_is_refused",
            "tests/training/test_correlated.py::test_a_killed_run_goes_on_with_the_same_noise",
            "tests/transforms/test_correlated.py::test_a_run_that_goes_on_from_its_state_is_the_same_run",
        ),
        "resuming and a state put back go on as with independent noise: the first two of these fail",
    ),
    73: Trap(
        "A batch brings an example back earlier, or more often, than the sensitivity of correlated noise is for.",
        (
            "tests/correlated/test_promise.py::test_the_batch_that_breaks_the_promise_is_not_given_out",
            "tests/correlated/test_promise.py::test_it_is_the_definition",
            "tests/training/test_correlated.py::test_the_loop_records_the_plan_and_its_batches_keep_the_promise",
            "tests/training/test_correlated.py::test_what_does_not_go_together_is_refused",
            "tests/training/test_correlated.py::test_other_data_are_refused",
        ),
        "check_batches allows one step less; the plan shuffles every epoch anew: the first three of these fail",
    ),
    74: Trap(
        "A run with correlated noise goes on beyond the steps that its sensitivity is for.",
        (
            "tests/transforms/test_correlated.py::test_steps_beyond_the_planned_ones_release_nothing",
            "tests/correlated/test_promise.py::test_the_batch_that_breaks_the_promise_is_not_given_out",
            "tests/correlated/test_noise.py::test_steps_beyond_a_dense_matrix_show",
        ),
        "steps beyond num_steps get noise like the others: the first of these fails",
    ),
    75: Trap(
        "The sensitivity of a strategy is stated too small, or is one that only some participations have.",
        (
            "tests/transforms/test_correlated.py::test_the_audit_sees_a_sensitivity_that_is_too_small",
            "tests/correlated/test_sensitivity.py::test_no_banded_toeplitz_is_below_brute_force",
            "tests/correlated/test_sensitivity.py::test_no_banded_inverse_is_below_brute_force",
            "tests/correlated/test_sensitivity.py::test_no_buffered_toeplitz_is_below_brute_force",
            "tests/correlated/test_sensitivity.py::test_no_dense_matrix_is_below_brute_force",
        ),
        "in the test: a sensitivity that is a tenth too small is refuted by the audit",
    ),
    76: Trap(
        "Noise that reaches over a cycle of groups is accounted for as independent Poisson steps.",
        (
            "tests/transforms/test_correlated.py::test_noise_that_reaches_over_a_cycle_is_refused",
            "tests/training/test_correlated.py::test_what_does_not_go_together_is_refused",
        ),
        "strategies of more bands than there are groups are accepted by privatize: the first of these fails",
    ),
    77: Trap(
        "A whole data set, or the batch of a shuffled loader, is noised and accounted for as a drawn Poisson batch.",
        (
            "tests/transforms/test_padding_mask.py::test_a_drawn_batch_has_all_its_rows",
            "tests/transforms/test_padding_mask.py::test_microbatches_have_all_rows_together",
        ),
        "the number of rows is not compared with the capacity: both fail",
    ),
    78: Trap(
        "A clip rule's numbers are changed after the noise was scaled to them.",
        ("tests/clipping/test_own_rules.py::test_what_the_caller_changes_later_changes_no_bound",),
        "rules keep the caller's arrays: four of its five cases fail",
    ),
    79: Trap(
        "A number that was lost from the file of a ledger is replaced by a default that costs less.",
        ("tests/test_ledger.py::test_a_field_that_was_lost_from_json_is_refused",),
        "missing fields and null take their defaults, as before: all of its cases fail",
    ),
    80: Trap(
        "A run goes on from the state of another one, and takes its steps again with the same noise.",
        ("tests/training/test_run_folder.py::test_a_state_that_is_put_back_is_charged_and_gets_new_keys",),
        "the keys of a state are not compared with those of the run: it fails",
    ),
    81: Trap(
        "A wrapper begins the state of the private transform again, which repeats its noise and forgets its steps.",
        (
            "tests/transforms/test_wrappers.py::test_a_ledger_is_read_only_in_wrappers_that_keep_what_is_inside",
            "tests/transforms/test_wrappers.py::test_a_wrapper_of_ones_own_that_begins_the_state_again_is_refused",
            "tests/transforms/test_wrappers.py::test_lookahead_that_resets_is_refused_when_it_is_compiled",
        ),
        "optax.lookahead on the list of wrappers that keep it, and no guard in init, as in version 0.2.0: all fail",
    ),
    82: Trap(
        "A transformation after the noise is given a private loss or gradient (a plateau, a line search).",
        (
            "tests/transforms/test_public_values.py::test_what_comes_after_the_noise_is_given_no_private_value",
            "tests/transforms/test_public_values.py::test_no_name_but_a_public_one_is_let_through",
            "tests/transforms/test_public_values.py::test_wrappers_hand_private_values_on_and_so_they_are_refused",
        ),
        "extra arguments are deleted, as in version 0.2.0: all fail",
    ),
    83: Trap(
        "An overflow, or a kind of noise, is stated that the scheme's event does not have, and is dropped.",
        (
            "tests/transforms/test_privatize.py::test_the_overflow_of_every_step_is_recorded",
            "tests/transforms/test_privatize.py::test_an_announcement_is_recorded_or_refused",
            "tests/sampling/test_own_scheme.py::test_an_overflow_that_the_event_cannot_hold_is_refused",
            "tests/transforms/test_privatize.py::test_independent_noise_is_not_recorded_as_that_of_a_strategy",
            "tests/test_ledger.py::test_an_overflow_that_its_event_cannot_hold_is_refused_when_it_is_read",
        ),
        "version 0.2.0: all fail; a scheme's overflow dropped where its event has no place for it, always or with "
        "correlated noise: the third fails",
    ),
    84: Trap(
        "Steps that share a row of a full ledger, or are rounded to float32, make a lower end above the truth.",
        (
            "tests/accounting/test_merged_records.py::test_a_bracket_of_merged_rows_holds_that_of_the_steps",
            "tests/accounting/test_merged_records.py::test_a_bracket_of_recorded_steps_holds_that_of_the_noise_that_was_added",
            "tests/transforms/test_privatize.py::test_the_bracket_of_a_schedule_is_that_of_its_steps",
        ),
        "version 0.2.0: each fails, of the recorded steps the case of the narrowest bracket",
    ),
    85: Trap(
        "Rows that the data do not have are read as the last row, which is then added many times.",
        (
            "tests/sampling/test_take.py::test_a_row_that_is_missing_adds_nothing",
            "tests/sampling/test_take.py::test_batches_on_the_host_take_rows_too",
            "tests/sampling/test_take.py::test_other_data_are_refused",
        ),
        "in the test: x[batch.indices], with which one example moves the sum by more than 40 in place of 2",
    ),
    86: Trap(
        "Two runs share a sampling key, and are accounted for as if their batches were independent.",
        (
            "tests/accounting/test_events.py::test_two_runs_on_the_same_batches_are_one_joint_event",
            "tests/training/test_loop.py::test_two_runs_have_batches_of_their_own",
        ),
        "two independent events state an epsilon of 2.58 where 4.48 is released; init with one sampling key for all "
        "runs: the second of these fails",
    ),
    87: Trap(
        "A target that the finite range of the noise excludes is answered by a plan with another epsilon.",
        (
            "tests/training/test_plan.py::test_no_plan_has_silently_another_epsilon",
            "tests/sweeps/test_sweep_spec.py::test_settings_without_a_plan_are_refused",
        ),
        "the plan of the least noise is returned, as before: all of their cases with a target fail",
    ),
    88: Trap(
        "A compiler for GPUs leaves out a cast and back, or does not drop writes out of range.",
        (
            "tests/test_ledger.py::test_rounding_to_a_side_does_not_rest_on_a_cast_and_back",
            "tests/sampling/test_poisson.py::test_no_place_out_of_range_is_written_to",
        ),
        "the side is found by casting to float32 and back: the first fails; the sampler's words without a marked row "
        "are written beyond the end: the second fails (on a GPU one row filled a batch)",
    ),
    89: Trap(
        "A state that is restored as that of other batches or another relation is accounted for as those.",
        ("tests/test_ledger.py::test_a_state_that_is_restored_as_that_of_other_steps_is_refused",),
        "the digest of the state is not compared: it fails",
    ),
    90: Trap(
        "A traced probability that a batch does not fit is out of range, and is recorded as 0.",
        ("tests/transforms/test_poisson_argument.py::test_a_traced_number_out_of_range_is_nan",),
        "version 0.2.0: it fails",
    ),
    91: Trap(
        "The overflow of a scheme is stated in several places, of a step, a run and an event, and one of them is 0.",
        (
            "tests/sampling/test_own_scheme.py::test_the_overflow_of_a_step_is_that_of_the_run",
            "tests/sampling/test_own_scheme.py::test_an_overflow_of_the_step_event_is_refused",
            "tests/sampling/test_own_scheme.py::test_a_batch_too_large_of_a_scheme_that_never_has_one",
        ),
        "the overflow of a run 0 by default, whatever that of a step; that of the step's event dropped: both fail",
    ),
    92: Trap(
        "A finite law is composed by way of a curve in which masses below the rounding of 1 are merged.",
        (
            "tests/accounting/test_outcomes.py::test_masses_below_the_rounding_of_one",
            "tests/accounting/test_outcomes.py::test_several_releases_by_enumeration",
        ),
        "outcomes composed as the polygon of from_probabilities: an epsilon of 43 for one of 63",
    ),
    93: Trap(
        "A step without noise is a symmetric failure, although not to be shown has a loss as well.",
        ("tests/accounting/test_without_noise.py::test_beside_noise_the_example_is_shown_or_missed",),
        "Lost.shown added to Lost.failure: a lower end of 0.425 for an epsilon of 0.138",
    ),
    94: Trap(
        "A primitive that acts on each entry is compiled to a loop that moves all rows until the slowest one is done.",
        (
            "tests/clipping/test_rowwise.py::test_the_incomplete_beta_function_is_refused_under_vmap",
            "tests/clipping/test_rowwise.py::test_a_function_that_is_iterated_leaves_rows_alone_that_have_converged",
        ),
        "regularized_incomplete_beta among the elementwise primitives: one row moved a sum by 1.19 at a bound of 0.2",
    ),
}


@functools.cache
def names_in(file: str) -> set[str]:
    """Return the functions and classes that a test file defines, methods as Class::method."""
    names = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [inner.name for inner in node.body if isinstance(inner, ast.FunctionDef)]
            names.update(f"{node.name}::{method}" for method in methods)
    return names


def page() -> str:
    """Return the text of docs/traps.md, where the rows of its table are made anew."""
    head, _, rest = PAGE.read_text().partition(ROWS_BEGIN)
    _, _, foot = rest.partition(ROWS_END)
    rows = []
    for number, trap in TRAPS.items():
        files = ", ".join(files_of(trap))
        rows.append(f"| {number} | {trap.what} | {files} |\n")
    return head + ROWS_BEGIN + "".join(rows) + ROWS_END + foot


ROWS_BEGIN = "|---|---|---|\n"
ROWS_END = "\n## "


def files_of(trap: Trap) -> list[str]:
    """Return the test files of a trap, each once, as they are written on the page."""
    files = []
    for node in trap.guarded_by:
        file = f"`{node.split('::')[0].removeprefix('tests/')}`"
        if file not in files:
            files.append(file)
    return files


def test_every_trap_is_guarded():
    """Traps are numbered from one, and each says what goes wrong, what guards it and how that was seen."""
    assert list(TRAPS) == list(range(1, len(TRAPS) + 1))
    for number, trap in TRAPS.items():
        assert trap.what, number
        assert trap.guarded_by, number
        assert trap.broken_by, number


def test_every_guard_exists():
    """A guard is the name of a test that its file defines."""
    for number, trap in TRAPS.items():
        for node in trap.guarded_by:
            file, _, name = node.partition("::")
            assert name.split("::")[-1].startswith("test_"), (number, node)
            assert name in names_in(file), (number, node)


def test_the_page_is_the_table():
    """The page is the one that this module would write, and has words on what no test can see."""
    assert PAGE.read_text() == page(), "run python -m tests.test_traps"
    assert PAGE.read_text().count("\n- **") >= 5, "what no test can see is written by hand, below the table"


if __name__ == "__main__":
    PAGE.write_text(page())
