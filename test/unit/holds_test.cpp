#include "holds.hpp"

#include "support.hpp"

namespace kudos {
namespace {

using namespace test;

std::vector<Consumption> consumed_by(const std::vector<CurrencyPosting> &rows)
{
    return consumptions(pointers(rows));
}

HoldState hold(unsigned id, std::string_view business_id, Cents remaining)
{
    return {.id = uuid(id), .business_id = business_id, .remaining = remaining};
}

HoldState hold_of_event(unsigned id, std::string_view business_id, Cents remaining, unsigned event)
{
    return {
        .id = uuid(id), .event = uuid(event), .business_id = business_id, .remaining = remaining, .has_event = true};
}

std::vector<Uuid> uuids(std::initializer_list<unsigned> numbers)
{
    std::vector<Uuid> all;
    for (const unsigned number : numbers)
        all.push_back(uuid(number));
    return all;
}

using Writes = std::vector<HoldWrite>;

TEST(Consumptions, SumTheDebitsOfEachHold)
{
    EXPECT_EQ(consumed_by({naming(spendable(1, 1, -3_kudos), "b"), naming(spendable(2, 1, -0.5_kudos), "a"),
                           naming(spendable(3, 2, -4.25_kudos), "b")}),
              (std::vector<Consumption>{{"a", 0.5_kudos}, {"b", 7.25_kudos}}));
}

TEST(Consumptions, ComeFromSpendableDebitsAlone)
{
    EXPECT_EQ(consumed_by({naming(spendable(1, 1, 3_kudos), "credit"), naming(spendable(2, 1, 0), "zero"),
                           naming(escrow(3, 1, -3_kudos), "escrow"), spendable(4, 1, -3_kudos)}),
              std::vector<Consumption>{});
}

TEST(Consumptions, AreNotReducedByCreditsThatNameTheHold)
{
    EXPECT_EQ(consumed_by({naming(spendable(1, 1, -3_kudos), "a"), naming(spendable(2, 1, 2_kudos), "a")}),
              (std::vector<Consumption>{{"a", 3_kudos}}));
}

TEST(Consumptions, CompareBusinessIdsAsTheyAre)
{
    EXPECT_EQ(consumed_by({naming(spendable(1, 1, -1_kudos), "a"), naming(spendable(2, 1, -2_kudos), "A"),
                           naming(spendable(3, 1, -4_kudos), " a"), naming(spendable(4, 1, -8_kudos), "")}),
              (std::vector<Consumption>{{"", 8_kudos}, {" a", 4_kudos}, {"A", 2_kudos}, {"a", 1_kudos}}));
}

TEST(EventsOf, NamesEachEventOnceAndSorted)
{
    const std::vector<CurrencyPosting> rows = {of_event(spendable(1, 1, 1), 9), of_event(escrow(2, 1, 1), 3),
                                               of_event(spendable(3, 1, 1), 9)};
    EXPECT_EQ(events_of(pointers(rows)), uuids({3, 9}));
    EXPECT_EQ(events_of({}), uuids({}));
}

TEST(SettleHolds, TakesWhatTheDebitsTake)
{
    const std::vector<HoldState> holds = {hold(1, "a", 50_kudos)};
    const std::vector<Consumption> taken = {{"a", 20.25_kudos}};
    EXPECT_EQ(settle_holds(holds, taken, {}, {}), (Writes{{uuid(1), 29.75_kudos, false}}));
}

TEST(SettleHolds, ReleasesAHoldOfWhichNothingRemains)
{
    const std::vector<HoldState> holds = {hold(1, "a", 50_kudos)};
    const std::vector<Consumption> taken = {{"a", 50_kudos}};
    EXPECT_EQ(settle_holds(holds, taken, {}, {}), (Writes{{uuid(1), 0, true}}));
}

TEST(SettleHolds, TakesAtMostWhatRemains)
{
    const std::vector<HoldState> holds = {hold(1, "a", 50_kudos)};
    const std::vector<Consumption> taken = {{"a", 50.01_kudos}};
    EXPECT_EQ(settle_holds(holds, taken, {}, {}), (Writes{{uuid(1), 0, true}}));
}

TEST(SettleHolds, ReleasesAnEmptyHoldThatADebitStillNames)
{
    const std::vector<HoldState> holds = {hold(1, "a", 0)};
    const std::vector<Consumption> taken = {{"a", 1_kudos}};
    EXPECT_EQ(settle_holds(holds, taken, {}, {}), (Writes{{uuid(1), 0, true}}));
}

TEST(SettleHolds, IgnoresDebitsOfUnknownHoldsAndHoldsThatNobodyNames)
{
    const std::vector<HoldState> holds = {hold(1, "a", 50_kudos), hold(2, "aa", 5_kudos), hold(3, "", 5_kudos)};
    const std::vector<Consumption> taken = {{"A", 1_kudos}, {"b", 1_kudos}};
    EXPECT_EQ(settle_holds(holds, taken, {}, {}), Writes{});
}

TEST(SettleHolds, ReleasesTheHoldsOfACompletedEvent)
{
    const std::vector<HoldState> holds = {hold_of_event(1, "a", 50_kudos, 7), hold_of_event(2, "b", 5_kudos, 7),
                                          hold_of_event(3, "c", 5_kudos, 8)};
    EXPECT_EQ(settle_holds(holds, {}, uuids({6, 7}), {}), (Writes{{uuid(1), 0, true}, {uuid(2), 0, true}}));
}

TEST(SettleHolds, KeepsTheHoldOfAnEventWithRowsLeft)
{
    const std::vector<HoldState> holds = {hold_of_event(1, "a", 50_kudos, 7), hold_of_event(2, "b", 9_kudos, 8)};
    const std::vector<Consumption> taken = {{"a", 20_kudos}};
    EXPECT_EQ(settle_holds(holds, taken, uuids({7, 8}), uuids({7})),
              (Writes{{uuid(1), 30_kudos, false}, {uuid(2), 0, true}}));
}

TEST(SettleHolds, ReleasesACompletedEventWhateverItsDebitsTook)
{
    const std::vector<HoldState> holds = {hold_of_event(1, "a", 50_kudos, 7)};
    const std::vector<Consumption> taken = {{"a", 20_kudos}};
    EXPECT_EQ(settle_holds(holds, taken, uuids({7}), {}), (Writes{{uuid(1), 0, true}}));
}

TEST(SettleHolds, NeverMatchesAHoldWithoutEvent)
{
    const std::vector<HoldState> holds = {hold(1, "a", 50_kudos)};
    EXPECT_EQ(settle_holds(holds, {}, uuids({0}), {}), Writes{});
}

TEST(SettleHolds, WritesInTheOrderInWhichTheHoldsWereLocked)
{
    const std::vector<HoldState> holds = {hold(1, "z", 50_kudos), hold(2, "m", 50_kudos), hold(3, "a", 50_kudos)};
    const std::vector<Consumption> taken = {{"a", 1_kudos}, {"m", 2_kudos}, {"z", 3_kudos}};
    EXPECT_EQ(settle_holds(holds, taken, {}, {}),
              (Writes{{uuid(1), 47_kudos, false}, {uuid(2), 48_kudos, false}, {uuid(3), 49_kudos, false}}));
}

} // namespace
} // namespace kudos
