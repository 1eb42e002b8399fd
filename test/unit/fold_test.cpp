#include "fold.hpp"

#include "support.hpp"

namespace kudos {
namespace {

using namespace test;

using Deltas = std::vector<TargetDelta>;
using Names = std::vector<std::string>;

// "workers #5 column 1", one for each target that the row feeds.
Names targets_of(const StatPosting &row)
{
    Names names;
    for_each_target(row, [&](Table table, int column, const TargetKey &key) {
        names.push_back(show(table, key) + " column " + std::to_string(column));
    });
    return names;
}

Fold fold_rows(const std::vector<CurrencyPosting> &currency, const std::vector<StatPosting> &stats)
{
    return fold(pointers(currency), pointers(stats));
}

TargetDelta user_activity(std::int64_t user, std::int64_t created)
{
    return {.key = {.user = user}, .has_activity = true, .activity = created};
}

TEST(Targets, OfUserKudosIsTheUsersStatistic)
{
    EXPECT_EQ(targets_of(user_kudos(1, 3, "image", 5)), (Names{"user_stats 3 image column 0"}));
}

TEST(Targets, OfWorkerKudosAreStatisticWorkerAndTheTeamOnTheRow)
{
    EXPECT_EQ(targets_of(worker_kudos(1, 5, "image", 5)),
              (Names{"worker_stats #5 image column 0", "workers #5 column 0"}));
    EXPECT_EQ(targets_of(in_team(worker_kudos(1, 5, "image", 5), 9)),
              (Names{"worker_stats #5 image column 0", "workers #5 column 0", "teams #9 column 0"}));
}

TEST(Targets, OfARecordIsTheUsersRecord)
{
    EXPECT_EQ(targets_of(user_record(1, 3, "REQUEST", "image", "count", 5)),
              (Names{"user_records 3 REQUEST image column 0"}));
}

TEST(Targets, OfContributionsAndFulfilmentsAreTheirColumns)
{
    EXPECT_EQ(targets_of(contributions(1, 5, 5)), (Names{"workers #5 column 1"}));
    EXPECT_EQ(targets_of(fulfilments(1, 5, 5)), (Names{"workers #5 column 2"}));
    EXPECT_EQ(targets_of(in_team(contributions(1, 5, 5), 9)), (Names{"workers #5 column 1", "teams #9 column 1"}));
    EXPECT_EQ(targets_of(in_team(fulfilments(1, 5, 5), 9)), (Names{"workers #5 column 2", "teams #9 column 2"}));
}

TEST(Targets, OfAnActivityIsTheTouchAlone)
{
    EXPECT_EQ(targets_of(activity(1, 3, 77)), (Names{"users 3 column 2"}));
}

TEST(Targets, IncludeTheTouchOfAnyUserRow)
{
    EXPECT_EQ(targets_of(touching(user_kudos(1, 3, "image", 5), 77)),
              (Names{"users 3 column 2", "user_stats 3 image column 0"}));
    EXPECT_EQ(targets_of(touching(user_record(1, 3, "REQUEST", "image", "count", 5), 77)),
              (Names{"users 3 column 2", "user_records 3 REQUEST image column 0"}));
    EXPECT_EQ(
        targets_of(in_team(of_user(touching(worker_kudos(1, 5, "image", 5), 77), 3), 9)),
        (Names{"users 3 column 2", "worker_stats #5 image column 0", "workers #5 column 0", "teams #9 column 0"}));
}

TEST(Targets, OfARowWithoutUserHaveNoTouch)
{
    EXPECT_EQ(targets_of(touching(contributions(1, 5, 5), 77)), (Names{"workers #5 column 1"}));
}

TEST(Targets, FollowTheRecordWhereItContradictsTheEntryType)
{
    EXPECT_EQ(targets_of(user_record(1, 3, "REQUEST", "user_kudos", "kudos", 5)),
              (Names{"user_stats 3 REQUEST column 0"}));
    EXPECT_EQ(targets_of(with_record(contributions(1, 5, 5), "worker_kudos")),
              (Names{"worker_stats #5 contributions column 0", "workers #5 column 0"}));
    EXPECT_EQ(targets_of(with_record(contributions(1, 5, 5), "image")), (Names{"workers #5 column 1"}));
}

TEST(Fold, OfNothingIsNothing)
{
    const Fold folded = fold_rows({}, {});
    for (const Table table : all_tables)
        EXPECT_EQ(folded.of(table), Deltas{}) << show(table);
}

TEST(Fold, SumsSpendableAndEscrowApart)
{
    const Fold folded = fold_rows({spendable(1, 3, 10.4_kudos), escrow(2, 3, 7_kudos), spendable(3, 3, -0.9_kudos),
                                   escrow(4, 3, -9.25_kudos), escrow(5, 1, 1_kudos)},
                                  {});
    EXPECT_EQ(folded.of(Table::users),
              (Deltas{{.key = {.user = 1}, .delta = {0, 1_kudos}, .fed = {false, true}},
                      {.key = {.user = 3}, .delta = {9.5_kudos, -2.25_kudos}, .fed = {true, true}}}));
}

TEST(Fold, RemembersThatAZeroSumWasFed)
{
    const Fold folded = fold_rows({spendable(1, 3, 5_kudos), spendable(2, 3, -5_kudos), escrow(3, 4, 0)},
                                  {user_kudos(1, 3, "image", 0)});
    EXPECT_EQ(folded.of(Table::users),
              (Deltas{{.key = {.user = 3}, .fed = {true}}, {.key = {.user = 4}, .fed = {false, true}}}));
    EXPECT_EQ(folded.of(Table::user_stats), (Deltas{{.key = {.user = 3, .action = "image"}, .fed = {true}}}));
}

TEST(Fold, SumsEachTargetOnceAndInKeyOrder)
{
    const Fold folded = fold_rows({}, {user_kudos(1, 9, "text", 1_kudos), user_kudos(2, 3, "text", 2_kudos),
                                       user_kudos(3, 9, "image", 4_kudos), user_kudos(4, 9, "text", 8_kudos),
                                       user_kudos(5, -1, "text", 16_kudos)});
    EXPECT_EQ(folded.of(Table::user_stats),
              (Deltas{{.key = {.user = -1, .action = "text"}, .delta = {16_kudos}, .fed = {true}},
                      {.key = {.user = 3, .action = "text"}, .delta = {2_kudos}, .fed = {true}},
                      {.key = {.user = 9, .action = "image"}, .delta = {4_kudos}, .fed = {true}},
                      {.key = {.user = 9, .action = "text"}, .delta = {9_kudos}, .fed = {true}}}));
}

TEST(Fold, OrdersUuidsByTheirBytes)
{
    Uuid high;
    high.bytes[0] = 0x80;
    Uuid low;
    low.bytes[0] = 0x7F;
    low.bytes[15] = 0xFF;
    StatPosting first = contributions(1, 0, 1_kudos);
    first.worker = high;
    StatPosting second = contributions(2, 0, 2_kudos);
    second.worker = low;
    EXPECT_EQ(fold_rows({}, {first, second}).of(Table::workers),
              (Deltas{{.key = {.uuid = low}, .delta = {0, 2_kudos}, .fed = {false, true}},
                      {.key = {.uuid = high}, .delta = {0, 1_kudos}, .fed = {false, true}}}));
}

TEST(Fold, KeepsKeysApartThatDifferInCaseOrBlanks)
{
    EXPECT_EQ(fold_rows({}, {user_record(1, 3, "USAGE", "a", "things", 1_kudos),
                             user_record(2, 3, "USAGE", "a ", "things", 2_kudos),
                             user_record(3, 3, "USAGE", "A", "things", 4_kudos),
                             user_record(4, 3, "STYLE", "a", "count", 8_kudos),
                             user_record(5, 3, "USAGE", "", "things", 16_kudos)})
                  .of(Table::user_records),
              (Deltas{{.key = {.user = 3, .action = "STYLE", .record = "a"}, .delta = {8_kudos}, .fed = {true}},
                      {.key = {.user = 3, .action = "USAGE", .record = ""}, .delta = {16_kudos}, .fed = {true}},
                      {.key = {.user = 3, .action = "USAGE", .record = "A"}, .delta = {4_kudos}, .fed = {true}},
                      {.key = {.user = 3, .action = "USAGE", .record = "a"}, .delta = {1_kudos}, .fed = {true}},
                      {.key = {.user = 3, .action = "USAGE", .record = "a "}, .delta = {2_kudos}, .fed = {true}}}));
}

TEST(Fold, KeepsTheLatestTouchWhateverTheOrder)
{
    EXPECT_EQ(fold_rows({}, {activity(1, 3, 50), activity(2, 3, 90), activity(3, 3, 70), activity(4, 4, -5)})
                  .of(Table::users),
              (Deltas{user_activity(3, 90), user_activity(4, -5)}));
}

TEST(Fold, KeepsATouchBesideTheAmountsOfTheUser)
{
    TargetDelta expected = user_activity(3, -90);
    expected.delta[column::user_kudos] = 5_kudos;
    expected.fed[column::user_kudos] = true;
    EXPECT_EQ(fold_rows({spendable(1, 3, 5_kudos)}, {activity(1, 3, -90)}).of(Table::users), (Deltas{expected}));
}

TEST(Fold, CreditsTheTeamOnTheRowNotOneTeamAWorker)
{
    const Fold folded =
        fold_rows({}, {in_team(worker_kudos(1, 5, "image", 1_kudos), 9),
                       in_team(worker_kudos(2, 5, "image", 2_kudos), 8), worker_kudos(3, 5, "text", 4_kudos),
                       in_team(contributions(4, 5, 8_kudos), 9), in_team(fulfilments(5, 6, 1_kudos), 9)});
    EXPECT_EQ(folded.of(Table::teams),
              (Deltas{{.key = {.uuid = uuid(8)}, .delta = {2_kudos}, .fed = {true}},
                      {.key = {.uuid = uuid(9)}, .delta = {1_kudos, 8_kudos, 1_kudos}, .fed = {true, true, true}}}));
    EXPECT_EQ(folded.of(Table::workers),
              (Deltas{{.key = {.uuid = uuid(5)}, .delta = {7_kudos, 8_kudos}, .fed = {true, true}},
                      {.key = {.uuid = uuid(6)}, .delta = {0, 0, 1_kudos}, .fed = {false, false, true}}}));
    EXPECT_EQ(folded.of(Table::worker_stats),
              (Deltas{{.key = {.uuid = uuid(5), .action = "image"}, .delta = {3_kudos}, .fed = {true}},
                      {.key = {.uuid = uuid(5), .action = "text"}, .delta = {4_kudos}, .fed = {true}}}));
}

TEST(Fold, AddsAmountsBeyond64Bits)
{
    constexpr Cents most = 999'999'999'999'999'999.99_kudos;
    EXPECT_EQ(fold_rows({spendable(1, 3, most), spendable(2, 3, most), spendable(3, 3, most)}, {}).of(Table::users),
              (Deltas{{.key = {.user = 3}, .delta = {2'999'999'999'999'999'999.97_kudos}, .fed = {true}}}));
}

TEST(Settle, ShowsTheExactValueRoundedAndKeepsTheRest)
{
    EXPECT_EQ(settle(bigint_column, 12.34_kudos), (Settled{.fits = true, .shown = 12_kudos, .remainder = 0.34_kudos}));
    EXPECT_EQ(settle(bigint_column, 12.5_kudos), (Settled{.fits = true, .shown = 13_kudos, .remainder = -0.5_kudos}));
    EXPECT_EQ(settle(bigint_column, -12.5_kudos), (Settled{.fits = true, .shown = -13_kudos, .remainder = 0.5_kudos}));
    EXPECT_EQ(settle(bigint_column, -0.49_kudos), (Settled{.fits = true, .shown = 0, .remainder = -0.49_kudos}));
    EXPECT_EQ(settle(numeric_column, 12.5_kudos), (Settled{.fits = true, .shown = 12.5_kudos, .remainder = 0}));
}

TEST(Settle, FitsWhatTheColumnShowsNotTheExactValue)
{
    EXPECT_EQ(settle(integer_column, 2147483647.49_kudos),
              (Settled{.fits = true, .shown = 2147483647_kudos, .remainder = 0.49_kudos}));
    EXPECT_FALSE(settle(integer_column, 2147483647.5_kudos).fits);
    EXPECT_EQ(settle(integer_column, -2147483648.49_kudos),
              (Settled{.fits = true, .shown = -2147483648_kudos, .remainder = -0.49_kudos}));
    EXPECT_FALSE(settle(integer_column, -2147483648.5_kudos).fits);
    EXPECT_TRUE(settle(bigint_column, 9223372036854775807.49_kudos).fits);
    EXPECT_FALSE(settle(bigint_column, 9223372036854775807.5_kudos).fits);
    EXPECT_TRUE(settle(numeric_column, 999'999'999'999'999'999.99_kudos).fits);
    EXPECT_FALSE(settle(numeric_column, 1'000'000'000'000'000'000_kudos).fits);
}

} // namespace
} // namespace kudos
