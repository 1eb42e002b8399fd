#include "batch.hpp"

#include "support.hpp"

namespace kudos {
namespace {

using namespace test;

using Ids = std::vector<std::int64_t>;
using Writes = std::vector<TargetWrite>;
using Refusals = std::vector<Withheld>;
using Events = std::vector<QuarantinedEvent>;

constexpr std::string_view pseudonymous = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";

TargetState user(std::string_view oauth_id, Cents kudos, Cents evaluating = 0, std::int64_t last_active = 0)
{
    return {.present = true, .shown = {kudos, evaluating}, .last_active = last_active, .oauth_id = oauth_id};
}

TargetState columns(std::initializer_list<Cents> shown, std::initializer_list<Cents> remainder = {})
{
    TargetState state;
    state.present = true;
    std::copy(shown.begin(), shown.end(), state.shown);
    std::copy(remainder.begin(), remainder.end(), state.remainder);
    return state;
}

TargetState value(Cents shown, Cents remainder = 0)
{
    return columns({shown}, {remainder});
}

TargetState unreadable()
{
    TargetState state = value(0);
    state.readable = false;
    return state;
}

const TargetState absent = {};

Withheld withhold_user(int column, std::int64_t user, Cause cause = Cause::overflow)
{
    return {.table = Table::users, .column = static_cast<std::int8_t>(column), .cause = cause, .key = {.user = user}};
}

// ---------------------------------------------------------------------------------------------
// Floor

struct Balance {
    Cents exact = 0;
    Cents created = 0;
    bool operator==(const Balance &) const = default;
};

void PrintTo(const Balance &balance, std::ostream *out)
{
    *out << "{" << show(balance.exact) << ", created " << show(balance.created) << "}";
}

// One batch of spendable amounts on the balance of one user.
Balance fold_on(Cents opening, std::string_view oauth_id, std::initializer_list<Cents> amounts)
{
    std::vector<CurrencyPosting> rows;
    for (const Cents amount : amounts)
        rows.push_back(spendable(static_cast<std::int64_t>(rows.size()) + 1, 3, amount));
    OpenBatch batch(rows, {});
    batch.validate_and_fold();
    TargetState state = user(oauth_id, round_to_units(opening) * 100);
    state.remainder[0] = opening - state.shown[0];
    batch.settle(Table::users, {state});

    Balance balance{.exact = opening};
    for (const TargetWrite &write : writes(*batch, Table::users))
        balance.exact = write.shown[0] + write.remainder[0];
    for (const FloorAdjustment &adjustment : floor_adjustments(*batch)) {
        EXPECT_EQ(adjustment.user, 3);
        balance.created += adjustment.amount;
    }
    return balance;
}

TEST(Floor, StopsADebitAtTheMinimumAndRecordsTheDifference)
{
    EXPECT_EQ(fold_on(30_kudos, "g_1", {-20_kudos}), (Balance{25_kudos, 15_kudos}));
    EXPECT_EQ(fold_on(30_kudos, pseudonymous, {-20_kudos}), (Balance{14_kudos, 4_kudos}));
    EXPECT_EQ(fold_on(30_kudos, "anon", {-100_kudos}), (Balance{-50_kudos, 20_kudos}));
}

TEST(Floor, LeavesABalanceThatEndsOnItOrAbove)
{
    EXPECT_EQ(fold_on(30_kudos, "g_1", {-5_kudos}), (Balance{25_kudos, 0}));
    EXPECT_EQ(fold_on(30_kudos, "g_1", {-4.99_kudos}), (Balance{25.01_kudos, 0}));
    EXPECT_EQ(fold_on(-50_kudos, "anon", {0}), (Balance{-50_kudos, 0}));
}

TEST(Floor, LiftsABalanceThatWasAlreadyLowerEvenOnACredit)
{
    EXPECT_EQ(fold_on(10_kudos, "g_1", {5_kudos}), (Balance{25_kudos, 10_kudos}));
    EXPECT_EQ(fold_on(10_kudos, "g_1", {14.99_kudos}), (Balance{25_kudos, 0.01_kudos}));
    EXPECT_EQ(fold_on(10_kudos, "g_1", {15_kudos}), (Balance{25_kudos, 0}));
    EXPECT_EQ(fold_on(10_kudos, "g_1", {20_kudos}), (Balance{30_kudos, 0}));
    EXPECT_EQ(fold_on(-1000_kudos, "g_1", {0.01_kudos}), (Balance{25_kudos, 1024.99_kudos}));
}

TEST(Floor, LiftsOnAZeroSum)
{
    EXPECT_EQ(fold_on(10_kudos, "g_1", {0}), (Balance{25_kudos, 15_kudos}));
    EXPECT_EQ(fold_on(10_kudos, "g_1", {5_kudos, -5_kudos}), (Balance{25_kudos, 15_kudos}));
}

TEST(Floor, LooksAtTheSumOfTheBatch)
{
    EXPECT_EQ(fold_on(30_kudos, "g_1", {-100_kudos, 100_kudos}), (Balance{30_kudos, 0}));
    const Balance debited = fold_on(30_kudos, "g_1", {-100_kudos});
    EXPECT_EQ(debited, (Balance{25_kudos, 95_kudos}));
    EXPECT_EQ(fold_on(debited.exact, "g_1", {100_kudos}), (Balance{125_kudos, 0}));
}

TEST(Floor, MeasuresTheExactValueNotTheOneShown)
{
    EXPECT_EQ(fold_on(25_kudos, "g_1", {-0.3_kudos}), (Balance{25_kudos, 0.3_kudos}));
    EXPECT_EQ(fold_on(25.49_kudos, "g_1", {-0.48_kudos}), (Balance{25.01_kudos, 0}));
    EXPECT_EQ(fold_on(24.5_kudos, "g_1", {0.1_kudos}), (Balance{25_kudos, 0.4_kudos}));
}

TEST(Floor, RecordsAnAdjustmentWhereTheBalanceStays)
{
    OpenBatch batch({spendable(1, 3, -10_kudos)}, {});
    batch.validate_and_fold();
    batch.settle(Table::users, {user("g_1", 25_kudos)});
    EXPECT_EQ(list(writes(*batch, Table::users)), Writes{});
    EXPECT_EQ(list(floor_adjustments(*batch)), (std::vector<FloorAdjustment>{{3, 10_kudos}}));
}

TEST(Floor, IsNoMatterOfEscrowTouchesOrStatistics)
{
    OpenBatch batch({escrow(1, 3, -10_kudos)}, {touching(user_kudos(2, 3, "image", -5_kudos), 99), activity(3, 4, 99)});
    batch.validate_and_fold();
    batch.settle(Table::users, {user("g_1", 10_kudos, 2_kudos), user("g_2", 10_kudos)});
    EXPECT_EQ(list(floor_adjustments(*batch)), std::vector<FloorAdjustment>{});
    EXPECT_EQ(list(writes(*batch, Table::users)), (Writes{{.index = 0,
                                                           .present = true,
                                                           .value_changed = true,
                                                           .shown = {10_kudos, -8_kudos},
                                                           .step = {0, -10_kudos},
                                                           .touched = true,
                                                           .last_active = 99},
                                                          {.index = 1,
                                                           .present = true,
                                                           .value_changed = true,
                                                           .shown = {10_kudos},
                                                           .touched = true,
                                                           .last_active = 99}}));
}

// ---------------------------------------------------------------------------------------------
// Values

TEST(Settling, ShowsTheExactTotalRoundedAndKeepsTheRemainder)
{
    OpenBatch batch({spendable(1, 3, 0.4_kudos), escrow(2, 3, -0.5_kudos)}, {});
    batch.validate_and_fold();
    TargetState state = user("g_1", 100_kudos, 2_kudos, 7);
    state.remainder[0] = 0.2_kudos;
    batch.settle(Table::users, {state});
    EXPECT_EQ(list(writes(*batch, Table::users)), (Writes{{.index = 0,
                                                           .present = true,
                                                           .value_changed = true,
                                                           .remainder_changed = true,
                                                           .shown = {101_kudos, 2_kudos},
                                                           .step = {1_kudos, 0},
                                                           .remainder = {-0.4_kudos, -0.5_kudos},
                                                           .last_active = 7}}));
}

TEST(Settling, TellsAChangedRemainderFromAChangedValue)
{
    OpenBatch batch({}, {user_kudos(1, 3, "image", 0.3_kudos), user_kudos(2, 3, "text", 1_kudos)});
    batch.validate_and_fold();
    batch.settle(Table::user_stats, {value(10_kudos), value(10_kudos, 0.3_kudos)});
    EXPECT_EQ(
        list(writes(*batch, Table::user_stats)),
        (Writes{{.index = 0, .present = true, .remainder_changed = true, .shown = {10_kudos}, .remainder = {0.3_kudos}},
                {.index = 1,
                 .present = true,
                 .value_changed = true,
                 .shown = {11_kudos},
                 .step = {1_kudos},
                 .remainder = {0.3_kudos}}}));
}

TEST(Settling, LeavesAValueUntouchedOnAZeroDelta)
{
    OpenBatch batch({},
                    {user_kudos(1, 3, "image", 5_kudos), user_kudos(2, 3, "image", -5_kudos), contributions(3, 5, 0)});
    batch.validate_and_fold();
    // Remainders that no fold would leave, such as a changed column type leaves them.
    batch.settle(Table::user_stats, {value(10_kudos, 0.9_kudos)});
    batch.settle(Table::workers, {value(7.25_kudos, -0.75_kudos)});
    EXPECT_EQ(list(writes(*batch, Table::user_stats)), Writes{});
    EXPECT_EQ(list(writes(*batch, Table::workers)), Writes{});
}

TEST(Settling, ChangesOnlyTheColumnsOfAWorkerThatAreFed)
{
    OpenBatch batch({}, {contributions(1, 5, 2.5_kudos)});
    batch.validate_and_fold();
    batch.settle(Table::workers, {columns({10_kudos, 20_kudos, 30_kudos}, {0.1_kudos, 0, -0.3_kudos})});
    EXPECT_EQ(list(writes(*batch, Table::workers)), (Writes{{.index = 0,
                                                             .present = true,
                                                             .value_changed = true,
                                                             .remainder_changed = true,
                                                             .shown = {10_kudos, 23_kudos, 30_kudos},
                                                             .step = {0, 3_kudos, 0},
                                                             .remainder = {0.1_kudos, -0.5_kudos, -0.3_kudos}}}));
}

TEST(Settling, InsertsStatisticsAndRecordsEvenAtZero)
{
    OpenBatch batch({}, {user_kudos(1, 3, "image", 0), user_kudos(2, 3, "text", -2.5_kudos),
                         worker_kudos(3, 5, "image", 0.49_kudos),
                         user_record(4, 3, "USAGE", "image", "things", 0.49_kudos)});
    batch.validate_and_fold();
    batch.settle(Table::user_stats, {absent, absent});
    batch.settle(Table::worker_stats, {absent});
    batch.settle(Table::user_records, {absent});
    EXPECT_EQ(list(writes(*batch, Table::user_stats)), (Writes{{.index = 0},
                                                               {.index = 1,
                                                                .value_changed = true,
                                                                .remainder_changed = true,
                                                                .shown = {-3_kudos},
                                                                .step = {-3_kudos},
                                                                .remainder = {0.5_kudos}}}));
    EXPECT_EQ(list(writes(*batch, Table::worker_stats)),
              (Writes{{.index = 0, .remainder_changed = true, .remainder = {0.49_kudos}}}));
    EXPECT_EQ(list(writes(*batch, Table::user_records)),
              (Writes{{.index = 0, .value_changed = true, .shown = {0.49_kudos}, .step = {0.49_kudos}}}));
}

TEST(Settling, HoldsTheValueItselfInAFractionalColumn)
{
    OpenBatch batch({spendable(1, 3, 0.4_kudos), escrow(2, 3, -0.25_kudos)}, {});
    batch.validate_and_fold();
    TargetState state = user("g_1", 100_kudos, 2_kudos);
    state.remainder[0] = 0.3_kudos;
    batch.settle(Table::users, {numeric_column, numeric_column}, {state});
    EXPECT_EQ(list(writes(*batch, Table::users)), (Writes{{.index = 0,
                                                           .present = true,
                                                           .value_changed = true,
                                                           .remainder_changed = true,
                                                           .shown = {100.7_kudos, 1.75_kudos},
                                                           .step = {0.7_kudos, -0.25_kudos}}}));
}

TEST(Settling, NeverMovesLastActiveBack)
{
    OpenBatch batch({}, {activity(1, 3, 50), activity(2, 4, 50), activity(3, 5, 50)});
    batch.validate_and_fold();
    batch.settle(Table::users, {user("a", 30_kudos, 0, 49), user("b", 30_kudos, 0, 50), user("c", 30_kudos, 0, 51)});
    EXPECT_EQ(list(writes(*batch, Table::users)), (Writes{{.index = 0,
                                                           .present = true,
                                                           .value_changed = true,
                                                           .shown = {30_kudos},
                                                           .touched = true,
                                                           .last_active = 50}}));
}

TEST(Settling, SkipsWorkersAndTeamsThatAreGone)
{
    OpenBatch batch({}, {in_team(contributions(1, 5, 1_kudos), 8), in_team(contributions(2, 6, 2_kudos), 9)});
    batch.validate_and_fold();
    batch.settle(Table::workers, {absent, value(0)});
    batch.settle(Table::teams, {value(0), absent});
    EXPECT_EQ(list(stat_ids(*batch)), (Ids{1, 2}));
    EXPECT_EQ(
        list(writes(*batch, Table::workers)),
        (Writes{{.index = 1, .present = true, .value_changed = true, .shown = {0, 2_kudos}, .step = {0, 2_kudos}}}));
    EXPECT_EQ(
        list(writes(*batch, Table::teams)),
        (Writes{{.index = 0, .present = true, .value_changed = true, .shown = {0, 1_kudos}, .step = {0, 1_kudos}}}));
    EXPECT_EQ(list(refusals(*batch)), Refusals{});
}

TEST(Settling, SkipsTheStatisticsOfWorkersThatAreGone)
{
    OpenBatch batch({}, {worker_kudos(1, 6, "image", 1_kudos), worker_kudos(2, 5, "text", 2_kudos),
                         worker_kudos(3, 6, "text", 4_kudos), contributions(4, 7, 1)});
    batch.validate_and_fold();
    EXPECT_EQ(list(workers_with_stats(*batch)), (std::vector<Uuid>{uuid(5), uuid(6)}));
    const std::vector<Uuid> existing = {uuid(7), uuid(6)};
    expect_ok(skip_missing_workers(*batch, existing));
    EXPECT_EQ(
        list(deltas(*batch, Table::worker_stats)),
        (std::vector<TargetDelta>{{.key = {.uuid = uuid(6), .action = "image"}, .delta = {1_kudos}, .fed = {true}},
                                  {.key = {.uuid = uuid(6), .action = "text"}, .delta = {4_kudos}, .fed = {true}}}));
}

// ---------------------------------------------------------------------------------------------
// Refusals

TEST(Refusals, NameTheColumnThatWouldOverflow)
{
    OpenBatch batch({escrow(1, 3, 1_kudos), spendable(2, 4, 1_kudos)}, {fulfilments(3, 5, -1_kudos)});
    batch.validate_and_fold();
    batch.settle(Table::users, {user("g_1", 30_kudos, 2147483647_kudos), user("g_2", 30_kudos)});
    batch.settle(Table::workers, {columns({0, 0, -2147483648_kudos})});
    EXPECT_EQ(list(refusals(*batch)), (Refusals{withhold_user(column::user_evaluating, 3),
                                                {.table = Table::workers,
                                                 .column = column::fulfilments,
                                                 .cause = Cause::overflow,
                                                 .key = {.uuid = uuid(5)}}}));
    EXPECT_EQ(list(writes(*batch, Table::users)),
              (Writes{{.index = 1, .present = true, .value_changed = true, .shown = {31_kudos}, .step = {1_kudos}}}));
    EXPECT_EQ(list(writes(*batch, Table::workers)), Writes{});
}

TEST(Refusals, LetAFullColumnShrink)
{
    OpenBatch batch({escrow(1, 3, -1_kudos)}, {});
    batch.validate_and_fold();
    batch.settle(Table::users, {user("g_1", 30_kudos, 2147483647_kudos)});
    EXPECT_EQ(list(refusals(*batch)), Refusals{});
    EXPECT_EQ(list(writes(*batch, Table::users)), (Writes{{.index = 0,
                                                           .present = true,
                                                           .value_changed = true,
                                                           .shown = {30_kudos, 2147483646_kudos},
                                                           .step = {0, -1_kudos}}}));
}

TEST(Refusals, NameABalanceWhoseFloorAdjustmentNoRowCanHold)
{
    constexpr Cents deepest = 25_kudos - 999'999'999'999'999'999.99_kudos;
    OpenBatch batch({spendable(1, 3, 0), spendable(2, 4, -0.01_kudos)}, {});
    batch.validate_and_fold();
    TargetState state = user("g_1", round_to_units(deepest) * 100);
    state.remainder[0] = deepest - state.shown[0];
    batch.settle(Table::users, {state, state});
    EXPECT_EQ(list(floor_adjustments(*batch)), (std::vector<FloorAdjustment>{{3, 999'999'999'999'999'999.99_kudos}}));
    EXPECT_EQ(list(refusals(*batch)), (Refusals{withhold_user(column::user_kudos, 4)}));
}

TEST(Refusals, NameAUserWhoIsNotThere)
{
    OpenBatch batch({spendable(1, 3, 1_kudos)}, {});
    batch.validate_and_fold();
    batch.settle(Table::users, {absent});
    EXPECT_EQ(list(refusals(*batch)), (Refusals{withhold_user(column::any, 3, Cause::missing)}));
    EXPECT_EQ(list(writes(*batch, Table::users)), Writes{});
}

TEST(Refusals, NameATargetThatHoldsNoNumber)
{
    OpenBatch batch({}, {user_record(1, 3, "USAGE", "image", "things", 1_kudos)});
    batch.validate_and_fold();
    batch.settle(Table::user_records, {unreadable()});
    EXPECT_EQ(list(refusals(*batch)), (Refusals{{.table = Table::user_records,
                                                 .column = column::any,
                                                 .cause = Cause::unreadable,
                                                 .key = {.user = 3, .action = "USAGE", .record = "image"}}}));
    EXPECT_EQ(list(writes(*batch, Table::user_records)), Writes{});
}

TEST(Refusals, KeepWhatTheServerLayerCouldNotWrite)
{
    OpenBatch batch({}, {});
    const Withheld locked = {
        .table = Table::teams, .column = column::any, .cause = Cause::locked, .key = {.uuid = uuid(9)}};
    const Withheld vetoed = withhold_user(column::user_kudos, 3, Cause::not_written);
    expect_ok(refuse(*batch, locked));
    expect_ok(refuse(*batch, vetoed));
    EXPECT_EQ(list(refusals(*batch)), (Refusals{locked, vetoed}));
}

TEST(CauseText, HasAWordForEveryCause)
{
    std::vector<std::string_view> texts;
    for (const Cause cause : {Cause::overflow, Cause::unreadable, Cause::missing, Cause::not_written, Cause::locked})
        texts.push_back(cause_text(cause));
    EXPECT_EQ(texts, (std::vector<std::string_view>{"overflow", "unreadable", "missing", "not written", "locked"}));
}

// ---------------------------------------------------------------------------------------------
// What is folded at all

TEST(Batch, OfNothingFoldsNothing)
{
    OpenBatch batch({}, {});
    batch.validate_and_fold();
    EXPECT_EQ(list(named_users(*batch)), Ids{});
    EXPECT_EQ(list(currency_ids(*batch)), Ids{});
    EXPECT_EQ(list(stat_ids(*batch)), Ids{});
    EXPECT_EQ(list(quarantined_events(*batch)), Events{});
    EXPECT_EQ(list(folded_events(*batch)), std::vector<Uuid>{});
    EXPECT_EQ(list(hold_consumptions(*batch)), std::vector<Consumption>{});
    for (const Table table : all_tables) {
        batch.settle(table, {});
        EXPECT_EQ(list(writes(*batch, table)), Writes{}) << show(table);
    }
}

TEST(Batch, AsksForEachUserOfItsStatRowsOnce)
{
    OpenBatch batch({spendable(1, 99, 1_kudos)}, {user_kudos(1, 7, "image", 1), of_user(contributions(2, 5, 1), 3),
                                                  user_kudos(3, 7, "text", 1), contributions(4, 5, 1)});
    EXPECT_EQ(list(named_users(*batch)), (Ids{3, 7}));
}

TEST(Quarantine, TakesTheWholeEventWithTheReasonOfItsLowestInvalidRow)
{
    OpenBatch batch({},
                    {of_event(user_kudos(1, 3, "image", 1), 20), of_event(without_worker(contributions(2, 5, 1)), 20),
                     of_event(user_kudos(3, 404, "image", 1), 20), user_kudos(4, 3, "image", 1),
                     of_event(stat(5, "TRANSFER", "kudos", 1), 10), of_event(user_kudos(6, 3, "text", 1), 10)});
    batch.validate({3});
    EXPECT_EQ(list(quarantined_events(*batch)),
              (Events{{uuid(10), Reason::unknown_projection, 2}, {uuid(20), Reason::invalid_stat_contribution, 3}}));
    EXPECT_EQ(list(stat_ids(*batch)), (Ids{4}));
}

TEST(Quarantine, LetsTheCurrencyRowsOfTheEventFold)
{
    OpenBatch batch({of_event(spendable(1, 3, 5_kudos), 20)}, {of_event(user_kudos(1, 404, "image", 1), 20)});
    batch.validate({3});
    batch.fold();
    EXPECT_EQ(list(quarantined_events(*batch)), (Events{{uuid(20), Reason::missing_user, 1}}));
    EXPECT_EQ(list(currency_ids(*batch)), (Ids{1}));
    EXPECT_EQ(list(deltas(*batch, Table::users)),
              (std::vector<TargetDelta>{{.key = {.user = 3}, .delta = {5_kudos}, .fed = {true}}}));
    EXPECT_EQ(list(deltas(*batch, Table::user_stats)), std::vector<TargetDelta>{});
}

TEST(Quarantine, TakesRowsThatCannotFoldOrAreWithheldWithTheirEvent)
{
    OpenBatch batch({},
                    {of_event(unfoldable(user_kudos(1, 3, "image", 0)), 20), of_event(user_kudos(2, 4, "image", 1), 20),
                     of_event(user_kudos(3, 404, "image", 1), 20)},
                    {{.table = Table::user_stats, .column = column::value, .key = {.user = 4, .action = "image"}}});
    batch.validate({3, 4});
    EXPECT_EQ(list(quarantined_events(*batch)), (Events{{uuid(20), Reason::missing_user, 3}}));
    EXPECT_EQ(list(unfoldable_stat_ids(*batch)), Ids{});
    EXPECT_EQ(list(stat_ids(*batch)), Ids{});
}

TEST(Quarantine, LeavesAnEventThatCannotBeSetAsideAsItIs)
{
    OpenBatch batch({},
                    {of_event(user_kudos(1, 3, "image", 1), 20), of_event(user_kudos(2, 404, "image", 1), 20),
                     user_kudos(3, 3, "image", 1)},
                    {{.table = Table::stat_rows, .cause = Cause::raised, .key = {.uuid = uuid(20)}}});
    batch.validate({3});
    EXPECT_EQ(list(quarantined_events(*batch)), Events{});
    EXPECT_EQ(list(stat_ids(*batch)), (Ids{3}));
}

TEST(Batch, LeavesOutRowsThatCannotBeMarked)
{
    OpenBatch batch({spendable(1, 3, 5_kudos), spendable(2, 3, 7_kudos)},
                    {user_kudos(1, 3, "image", 1), user_kudos(2, 3, "image", 2)},
                    {{.table = Table::ledger_rows, .cause = Cause::not_written, .key = {.user = 2}},
                     {.table = Table::stat_rows, .cause = Cause::not_written, .key = {.user = 1}}});
    batch.validate({3});
    EXPECT_EQ(list(currency_ids(*batch)), (Ids{1}));
    EXPECT_EQ(list(stat_ids(*batch)), (Ids{2}));
}

TEST(Quarantine, DoesNotJudgeAUserWhoseExistenceIsUnknown)
{
    OpenBatch batch({}, {user_kudos(1, 3, "image", 1), user_kudos(2, 4, "image", 1), user_kudos(3, 404, "image", 1)},
                    {withhold_user(column::user_existence, 3, Cause::locked)});
    batch.validate({4});
    EXPECT_EQ(list(quarantined_events(*batch)), (Events{{uuid(3), Reason::missing_user, 1}}));
    EXPECT_EQ(list(stat_ids(*batch)), (Ids{2}));
}

TEST(Unfoldable, RowsStayUnappliedAndFeedNothing)
{
    OpenBatch batch({unfoldable(naming(spendable(1, 3, -1_kudos), "a")), spendable(2, 3, 2_kudos)},
                    {unfoldable(touching(user_kudos(1, 3, "image", 1_kudos), 9)), user_kudos(2, 3, "image", 2_kudos)});
    batch.validate_and_fold();
    EXPECT_EQ(list(unfoldable_currency_ids(*batch)), (Ids{1}));
    EXPECT_EQ(list(unfoldable_stat_ids(*batch)), (Ids{1}));
    EXPECT_EQ(list(currency_ids(*batch)), (Ids{2}));
    EXPECT_EQ(list(stat_ids(*batch)), (Ids{2}));
    EXPECT_EQ(list(deltas(*batch, Table::users)),
              (std::vector<TargetDelta>{{.key = {.user = 3}, .delta = {2_kudos}, .fed = {true}}}));
    EXPECT_EQ(list(deltas(*batch, Table::user_stats)),
              (std::vector<TargetDelta>{{.key = {.user = 3, .action = "image"}, .delta = {2_kudos}, .fed = {true}}}));
    EXPECT_EQ(list(hold_consumptions(*batch)), std::vector<Consumption>{});
    EXPECT_EQ(list(folded_events(*batch)), (std::vector<Uuid>{uuid(2)}));
}

// What of a mixed claim is folded while one target is withheld.
struct Folding {
    Ids currency;
    Ids stats;
    bool operator==(const Folding &) const = default;
};

void PrintTo(const Folding &folding, std::ostream *out)
{
    *out << "currency " << testing::PrintToString(folding.currency) << ", stats "
         << testing::PrintToString(folding.stats);
}

Folding without(const Withheld &held)
{
    OpenBatch batch({spendable(1, 3, 1_kudos), escrow(2, 3, 1_kudos), spendable(3, 4, 1_kudos), escrow(4, 4, 1_kudos)},
                    {user_kudos(1, 3, "image", 1), touching(user_kudos(2, 3, "text", 1), 9),
                     user_kudos(3, 4, "image", 1), in_team(worker_kudos(4, 5, "image", 1), 9),
                     in_team(contributions(5, 5, 1), 9), fulfilments(6, 5, 1), worker_kudos(7, 6, "image", 1),
                     activity(8, 4, 9), user_record(9, 3, "USAGE", "image", "things", 1),
                     user_record(10, 3, "USAGE", "text", "things", 1)},
                    {held});
    batch.validate({3, 4});
    EXPECT_EQ(list(quarantined_events(*batch)), Events{});
    return {list(currency_ids(*batch)), list(stat_ids(*batch))};
}

TEST(Withheld, BalanceHoldsBackTheSpendableRowsOfItsUser)
{
    EXPECT_EQ(without(withhold_user(column::user_kudos, 3)), (Folding{{2, 3, 4}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}));
}

TEST(Withheld, EscrowHoldsBackTheEscrowRowsOfItsUser)
{
    EXPECT_EQ(without(withhold_user(column::user_evaluating, 3)),
              (Folding{{1, 3, 4}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}));
}

TEST(Withheld, ActivityHoldsBackTheRowsThatTouch)
{
    EXPECT_EQ(without(withhold_user(column::user_activity, 3)), (Folding{{1, 2, 3, 4}, {1, 3, 4, 5, 6, 7, 8, 9, 10}}));
    EXPECT_EQ(without(withhold_user(column::user_activity, 4)), (Folding{{1, 2, 3, 4}, {1, 2, 3, 4, 5, 6, 7, 9, 10}}));
}

TEST(Withheld, ExistenceHoldsBackEveryStatRowThatNamesTheUser)
{
    EXPECT_EQ(without(withhold_user(column::user_existence, 3)), (Folding{{1, 2, 3, 4}, {3, 4, 5, 6, 7, 8}}));
}

// The statistics of a user are targets of their own; only their existence check needs his row.
TEST(Withheld, UserRowHoldsBackItsCurrencyAndTouchesAlone)
{
    EXPECT_EQ(without(withhold_user(column::any, 3)), (Folding{{3, 4}, {1, 3, 4, 5, 6, 7, 8, 9, 10}}));
}

TEST(Withheld, StatisticHoldsBackItsOwnRows)
{
    EXPECT_EQ(without({.table = Table::user_stats, .key = {.user = 3, .action = "image"}}),
              (Folding{{1, 2, 3, 4}, {2, 3, 4, 5, 6, 7, 8, 9, 10}}));
    EXPECT_EQ(without({.table = Table::user_records, .key = {.user = 3, .action = "USAGE", .record = "text"}}),
              (Folding{{1, 2, 3, 4}, {1, 2, 3, 4, 5, 6, 7, 8, 9}}));
    EXPECT_EQ(without({.table = Table::worker_stats, .key = {.uuid = uuid(6), .action = "image"}}),
              (Folding{{1, 2, 3, 4}, {1, 2, 3, 4, 5, 6, 8, 9, 10}}));
}

TEST(Withheld, WorkerOrTeamHoldsBackTheRowsOfItsColumn)
{
    EXPECT_EQ(without({.table = Table::workers, .column = column::kudos, .key = {.uuid = uuid(5)}}),
              (Folding{{1, 2, 3, 4}, {1, 2, 3, 5, 6, 7, 8, 9, 10}}));
    EXPECT_EQ(without({.table = Table::workers, .column = column::fulfilments, .key = {.uuid = uuid(5)}}),
              (Folding{{1, 2, 3, 4}, {1, 2, 3, 4, 5, 7, 8, 9, 10}}));
    EXPECT_EQ(without({.table = Table::teams, .column = column::contributions, .key = {.uuid = uuid(9)}}),
              (Folding{{1, 2, 3, 4}, {1, 2, 3, 4, 6, 7, 8, 9, 10}}));
    EXPECT_EQ(without({.table = Table::workers, .key = {.uuid = uuid(5)}}),
              (Folding{{1, 2, 3, 4}, {1, 2, 3, 7, 8, 9, 10}}));
    EXPECT_EQ(without({.table = Table::teams, .key = {.uuid = uuid(9)}}),
              (Folding{{1, 2, 3, 4}, {1, 2, 3, 6, 7, 8, 9, 10}}));
}

TEST(Withheld, TargetHoldsBackNothingOfItsNamesakes)
{
    const Folding everything = {{1, 2, 3, 4}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}};
    EXPECT_EQ(without(withhold_user(column::any, 5)), everything);
    EXPECT_EQ(without({.table = Table::user_stats, .key = {.user = 3, .action = "Image"}}), everything);
    EXPECT_EQ(without({.table = Table::teams, .key = {.uuid = uuid(5)}}), everything);
    EXPECT_EQ(without({.table = Table::worker_stats, .key = {.uuid = uuid(6), .action = "text"}}), everything);
}

TEST(Withheld, RowFeedsNoneOfItsOtherTargetsEither)
{
    OpenBatch batch(
        {}, {in_team(worker_kudos(1, 5, "image", 1_kudos), 9), in_team(worker_kudos(2, 6, "image", 2_kudos), 8)},
        {{.table = Table::teams, .column = column::kudos, .key = {.uuid = uuid(9)}}});
    batch.validate_and_fold();
    EXPECT_EQ(
        list(deltas(*batch, Table::worker_stats)),
        (std::vector<TargetDelta>{{.key = {.uuid = uuid(6), .action = "image"}, .delta = {2_kudos}, .fed = {true}}}));
    EXPECT_EQ(list(deltas(*batch, Table::workers)),
              (std::vector<TargetDelta>{{.key = {.uuid = uuid(6)}, .delta = {2_kudos}, .fed = {true}}}));
    EXPECT_EQ(list(deltas(*batch, Table::teams)),
              (std::vector<TargetDelta>{{.key = {.uuid = uuid(8)}, .delta = {2_kudos}, .fed = {true}}}));
}

// ---------------------------------------------------------------------------------------------
// Holds

TEST(BatchHolds, ConsumeAndReleaseWhatTheFoldedRowsName)
{
    OpenBatch batch({of_event(naming(spendable(1, 3, -20_kudos), "a"), 7),
                     of_event(naming(spendable(2, 3, -5_kudos), "b"), 8), of_event(escrow(3, 3, 1_kudos), 9)},
                    {});
    batch.validate_and_fold();
    EXPECT_EQ(list(hold_consumptions(*batch)), (std::vector<Consumption>{{"a", 20_kudos}, {"b", 5_kudos}}));
    EXPECT_EQ(list(folded_events(*batch)), (std::vector<Uuid>{uuid(7), uuid(8), uuid(9)}));

    const std::vector<HoldState> holds = {
        {.id = uuid(1), .event = uuid(7), .business_id = "a", .remaining = 50_kudos, .has_event = true},
        {.id = uuid(2), .event = uuid(8), .business_id = "b", .remaining = 50_kudos, .has_event = true},
        {.id = uuid(3), .event = uuid(9), .business_id = "c", .remaining = 50_kudos, .has_event = true}};
    const std::vector<Uuid> pending_in_any_order = {uuid(9), uuid(7), uuid(9)};
    expect_ok(settle_batch_holds(*batch, holds, pending_in_any_order));
    EXPECT_EQ(list(hold_writes(*batch)), (std::vector<HoldWrite>{{uuid(1), 30_kudos, false}, {uuid(2), 0, true}}));
}

TEST(BatchHolds, AreLeftAloneByWithheldRows)
{
    OpenBatch batch({naming(spendable(1, 3, -20_kudos), "a"), naming(spendable(2, 4, -5_kudos), "b")}, {},
                    {withhold_user(column::user_kudos, 3)});
    batch.validate_and_fold();
    EXPECT_EQ(list(hold_consumptions(*batch)), (std::vector<Consumption>{{"b", 5_kudos}}));
    EXPECT_EQ(list(folded_events(*batch)), (std::vector<Uuid>{uuid(2)}));
}

} // namespace
} // namespace kudos
