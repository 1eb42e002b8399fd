#include "validate.hpp"

#include "support.hpp"

namespace kudos {
namespace {

using namespace test;

const std::vector<std::int64_t> existing_users = {1, 2, 7};

Reason reason_of(const StatPosting &row)
{
    return validate(row, existing_users, usual_limits());
}

const std::string twenty = "abcdefghijklmnopqrst";
const std::string thirty = "abcdefghijklmnopqrstuvwxyzabcd";

TEST(RuleOf, AsksTheRecordBeforeTheEntryType)
{
    for (const std::string_view entry_type : {"STAT_RECORD", "STAT_CONTRIBUTION", "STAT_ACTIVITY", "TRANSFER", ""}) {
        EXPECT_EQ(rule_of(with_entry_type(user_kudos(1, 1, "image", 5), entry_type)), StatRule::user_kudos);
        EXPECT_EQ(rule_of(with_entry_type(worker_kudos(1, 1, "image", 5), entry_type)), StatRule::worker_kudos);
    }
}

TEST(RuleOf, FallsBackToTheEntryType)
{
    EXPECT_EQ(rule_of(user_record(1, 1, "REQUEST", "image", "count", 1)), StatRule::stat_record);
    EXPECT_EQ(rule_of(user_record(1, 1, "REQUEST", "last_active", "count", 1)), StatRule::stat_record);
    EXPECT_EQ(rule_of(contributions(1, 1, 1)), StatRule::stat_contribution);
    EXPECT_EQ(rule_of(with_record(contributions(1, 1, 1), "image")), StatRule::stat_contribution);
    EXPECT_EQ(rule_of(activity(1, 1, 1)), StatRule::stat_activity);
    EXPECT_EQ(rule_of(stat(1, "TRANSFER", "kudos", 1)), StatRule::unknown);
}

TEST(RuleOf, IgnoresTheTextOfAnAbsentRecord)
{
    StatPosting row = user_kudos(1, 1, "image", 5);
    row.has_record = false;
    EXPECT_EQ(rule_of(row), StatRule::unknown);
}

TEST(RuleOf, ComparesWholeWordsAndTheirCase)
{
    for (const std::string_view record : {"USER_KUDOS", "user_kudos ", "user_kudo", "", "worker"})
        EXPECT_EQ(rule_of(with_record(user_kudos(1, 1, "image", 5), record)), StatRule::unknown) << record;
    for (const std::string_view entry_type : {"stat_record", "STAT_RECORD ", "STAT", ""})
        EXPECT_EQ(rule_of(with_entry_type(contributions(1, 1, 1), entry_type)), StatRule::unknown) << entry_type;
}

TEST(Validate, AcceptsEveryKindOfRow)
{
    for (const StatPosting &row :
         {user_kudos(1, 1, "accumulated", -3.5_kudos), worker_kudos(2, 5, "generated", 1_kudos),
          in_team(worker_kudos(3, 5, "generated", 0), 9), user_record(4, 2, "CONTRIBUTION", "image", "things", 1),
          user_record(5, 2, "USAGE", "text", "things", 1), user_record(6, 2, "FULFILLMENT", "image", "count", 1),
          user_record(7, 2, "REQUEST", "image", "count", 1), user_record(8, 7, "STYLE", "image", "count", 1),
          contributions(9, 5, 2.5_kudos), fulfilments(10, 5, 1_kudos), in_team(contributions(11, 5, 1), 9),
          with_record(contributions(12, 5, 1), "image"), activity(13, 7, 1)})
        EXPECT_EQ(reason_of(row), Reason::none) << row.id;
}

TEST(Validate, TakesEmptyTextAsAKeyLikeAnyOther)
{
    EXPECT_EQ(reason_of(user_kudos(1, 1, "", 5)), Reason::none);
    EXPECT_EQ(reason_of(user_record(1, 1, "REQUEST", "", "count", 5)), Reason::none);
}

TEST(Validate, RefusesAUserWhoIsNotThere)
{
    for (const std::int64_t user : {0, 3, 6, 8, -1})
        EXPECT_EQ(reason_of(user_kudos(1, user, "image", 5)), Reason::missing_user) << user;
    EXPECT_EQ(validate(user_kudos(1, 1, "image", 5), {}, usual_limits()), Reason::missing_user);
}

TEST(Validate, AsksForTheUserOfARowThatFeedsNoUser)
{
    EXPECT_EQ(reason_of(of_user(worker_kudos(1, 5, "image", 5), 3)), Reason::missing_user);
    EXPECT_EQ(reason_of(of_user(worker_kudos(1, 5, "image", 5), 2)), Reason::none);
}

TEST(Validate, NeverAsksForAWorkerOrATeam)
{
    EXPECT_EQ(reason_of(in_team(worker_kudos(1, 404, "image", 5), 404)), Reason::none);
}

TEST(Validate, MeasuresLengthsInCharacters)
{
    EXPECT_EQ(reason_of(user_kudos(1, 1, twenty, 5)), Reason::none);
    EXPECT_EQ(reason_of(user_kudos(1, 1, twenty + "x", 5)), Reason::stat_action_too_long);
    EXPECT_EQ(reason_of(user_kudos(1, 1, "ääääääääääääääääääää", 5)), Reason::none);
    EXPECT_EQ(reason_of(user_kudos(1, 1, "äääääääääääääääääääää", 5)), Reason::stat_action_too_long);
    EXPECT_EQ(reason_of(user_record(1, 1, "REQUEST", thirty, "count", 5)), Reason::none);
    EXPECT_EQ(reason_of(user_record(1, 1, "REQUEST", thirty + "x", "count", 5)), Reason::record_too_long);
}

TEST(Validate, MeasuresRowsOfEveryRule)
{
    for (const StatPosting &row :
         {user_kudos(1, 1, "a", 5), worker_kudos(2, 5, "a", 5), user_record(3, 1, "REQUEST", "image", "count", 5),
          contributions(4, 5, 5), activity(5, 1, 1), with_action(stat(6, "TRANSFER", "kudos", 1), "a")}) {
        EXPECT_EQ(reason_of(with_action(row, twenty + "x")), Reason::stat_action_too_long) << row.id;
        EXPECT_EQ(reason_of(with_record(row, thirty + "x")), Reason::record_too_long) << row.id;
    }
}

TEST(Validate, TakesTheWidthOfTheTableThatTheRowFeeds)
{
    const ProjectionLimits limits{.record_types = record_types, .user_action = 5, .worker_action = 7, .record = 12};
    const auto with_limits = [&](const StatPosting &row) { return validate(row, existing_users, limits); };
    EXPECT_EQ(with_limits(user_kudos(1, 1, "abcde", 5)), Reason::none);
    EXPECT_EQ(with_limits(user_kudos(1, 1, "abcdef", 5)), Reason::stat_action_too_long);
    EXPECT_EQ(with_limits(worker_kudos(1, 5, "abcdefg", 5)), Reason::none);
    EXPECT_EQ(with_limits(worker_kudos(1, 5, "abcdefgh", 5)), Reason::stat_action_too_long);
    EXPECT_EQ(with_limits(user_record(1, 1, "STYLE", "abcdefghijkl", "count", 5)), Reason::none);
    EXPECT_EQ(with_limits(user_record(1, 1, "STYLE", "abcdefghijklm", "count", 5)), Reason::record_too_long);
}

TEST(Validate, RefusesUserKudosWithoutUserActionOrItsUnit)
{
    const StatPosting row = user_kudos(1, 1, "image", 5);
    EXPECT_EQ(reason_of(without_user(row)), Reason::invalid_user_kudos);
    EXPECT_EQ(reason_of(without_action(row)), Reason::invalid_user_kudos);
    for (const std::string_view unit : {"things", "count", "", "KUDOS"})
        EXPECT_EQ(reason_of(with_unit(row, unit)), Reason::invalid_user_kudos) << unit;
    EXPECT_EQ(reason_of(of_worker(without_user(row), 5)), Reason::invalid_user_kudos);
}

TEST(Validate, RefusesWorkerKudosWithoutWorkerActionOrItsUnit)
{
    const StatPosting row = worker_kudos(1, 5, "image", 5);
    EXPECT_EQ(reason_of(without_worker(row)), Reason::invalid_worker_kudos);
    EXPECT_EQ(reason_of(without_action(row)), Reason::invalid_worker_kudos);
    for (const std::string_view unit : {"things", "count", "", "KUDOS"})
        EXPECT_EQ(reason_of(with_unit(row, unit)), Reason::invalid_worker_kudos) << unit;
    EXPECT_EQ(reason_of(in_team(without_worker(row), 9)), Reason::invalid_worker_kudos);
}

TEST(Validate, RefusesARecordWithoutUserTypeOrName)
{
    const StatPosting row = user_record(1, 1, "REQUEST", "image", "count", 5);
    EXPECT_EQ(reason_of(without_user(row)), Reason::invalid_stat_record);
    EXPECT_EQ(reason_of(without_action(row)), Reason::invalid_stat_record);
    EXPECT_EQ(reason_of(without_record(row)), Reason::invalid_stat_record);
}

TEST(Validate, RefusesARecordTypeThatIsNoLabelOfTheEnum)
{
    for (const std::string_view type : {"image", "request", "REQUEST ", ""})
        EXPECT_EQ(reason_of(user_record(1, 1, type, "image", "count", 5)), Reason::invalid_stat_record) << type;
    EXPECT_EQ(validate(user_record(1, 1, "REQUEST", "image", "count", 5), existing_users, {}),
              Reason::invalid_stat_record);
}

TEST(Validate, AsksForTheUnitOfEachRecordType)
{
    for (const std::string_view type : {"CONTRIBUTION", "USAGE"}) {
        EXPECT_EQ(reason_of(user_record(1, 1, type, "image", "things", 5)), Reason::none);
        EXPECT_EQ(reason_of(user_record(1, 1, type, "image", "count", 5)), Reason::invalid_stat_record_unit);
        EXPECT_EQ(reason_of(user_record(1, 1, type, "image", "kudos", 5)), Reason::invalid_stat_record_unit);
    }
    for (const std::string_view type : {"FULFILLMENT", "REQUEST", "STYLE"}) {
        EXPECT_EQ(reason_of(user_record(1, 1, type, "image", "count", 5)), Reason::none);
        EXPECT_EQ(reason_of(user_record(1, 1, type, "image", "things", 5)), Reason::invalid_stat_record_unit);
        EXPECT_EQ(reason_of(user_record(1, 1, type, "image", "kudos", 5)), Reason::invalid_stat_record_unit);
    }
}

TEST(Validate, TakesLaterRecordTypesInEitherUnit)
{
    static constexpr std::string_view later[] = {"REQUEST", "AUDIO"};
    const auto with_later = [](const StatPosting &row) {
        return validate(row, existing_users, {.record_types = later});
    };
    EXPECT_EQ(with_later(user_record(1, 1, "AUDIO", "x", "things", 5)), Reason::none);
    EXPECT_EQ(with_later(user_record(1, 1, "AUDIO", "x", "count", 5)), Reason::none);
    EXPECT_EQ(with_later(user_record(1, 1, "AUDIO", "x", "kudos", 5)), Reason::invalid_stat_record_unit);
    EXPECT_EQ(with_later(user_record(1, 1, "STYLE", "x", "count", 5)), Reason::invalid_stat_record);
}

TEST(Validate, RefusesAContributionWithoutWorkerOrWithAnotherActionOrUnit)
{
    for (const StatPosting &row : {contributions(1, 5, 5), fulfilments(2, 5, 5)}) {
        EXPECT_EQ(reason_of(without_worker(row)), Reason::invalid_stat_contribution);
        EXPECT_EQ(reason_of(without_action(row)), Reason::invalid_stat_contribution);
        EXPECT_EQ(reason_of(with_action(row, "uptime")), Reason::invalid_stat_contribution);
        EXPECT_EQ(reason_of(with_unit(row, "kudos")), Reason::invalid_stat_contribution);
    }
    EXPECT_EQ(reason_of(with_unit(contributions(1, 5, 5), "count")), Reason::invalid_stat_contribution);
    EXPECT_EQ(reason_of(with_unit(fulfilments(1, 5, 5), "things")), Reason::invalid_stat_contribution);
}

TEST(Validate, RefusesAnActivityWithoutUserTouchOrItsRecordAndUnit)
{
    const StatPosting row = activity(1, 1, 1);
    EXPECT_EQ(reason_of(without_user(row)), Reason::invalid_stat_activity);
    EXPECT_EQ(reason_of(with_record(row, "image")), Reason::invalid_stat_activity);
    EXPECT_EQ(reason_of(with_unit(row, "things")), Reason::invalid_stat_activity);
    StatPosting untouched = row;
    untouched.touches = false;
    EXPECT_EQ(reason_of(untouched), Reason::invalid_stat_activity);
}

TEST(Validate, RefusesWhatNoRuleKnows)
{
    EXPECT_EQ(reason_of(of_user(stat(1, "TRANSFER", "kudos", 5), 1)), Reason::unknown_projection);
    EXPECT_EQ(reason_of(touching(of_user(stat(1, "", "", 5), 1), 1)), Reason::unknown_projection);
}

// One row that every reason holds for loses them one by one; what is asked first shows first.
TEST(Validate, GivesTheFirstReasonInTheOrderOfTheContract)
{
    StatPosting row = user_record(1, 404, twenty + "x", thirty + "x", "kudos", 5);
    EXPECT_EQ(reason_of(row), Reason::missing_user);
    row = of_user(row, 1);
    EXPECT_EQ(reason_of(row), Reason::stat_action_too_long);
    row = with_action(row, "UNHEARD OF");
    EXPECT_EQ(reason_of(row), Reason::record_too_long);
    row = with_record(row, "image");
    EXPECT_EQ(reason_of(row), Reason::invalid_stat_record);
    row = with_action(row, "USAGE");
    EXPECT_EQ(reason_of(row), Reason::invalid_stat_record_unit);
    row = with_unit(row, "things");
    EXPECT_EQ(reason_of(row), Reason::none);
}

TEST(ReasonText, SpellsEveryReasonAsTheArchiveHoldsIt)
{
    std::vector<std::string_view> texts;
    for (const Reason reason :
         {Reason::none, Reason::missing_user, Reason::stat_action_too_long, Reason::record_too_long,
          Reason::invalid_user_kudos, Reason::invalid_worker_kudos, Reason::invalid_stat_record,
          Reason::invalid_stat_record_unit, Reason::invalid_stat_contribution, Reason::invalid_stat_activity,
          Reason::unknown_projection})
        texts.push_back(reason_text(reason));
    EXPECT_EQ(texts, (std::vector<std::string_view>{"", "missing_user", "stat_action_too_long", "record_too_long",
                                                    "invalid_user_kudos", "invalid_worker_kudos", "invalid_stat_record",
                                                    "invalid_stat_record_unit", "invalid_stat_contribution",
                                                    "invalid_stat_activity", "unknown_projection"}));
}

} // namespace
} // namespace kudos
