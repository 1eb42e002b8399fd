// Memory that runs out at any allocation of the core: the step answers so, and nothing is lost (the leak
// check of the address sanitizer looks at the end).
#include "batch.hpp"

#include "failing_new.hpp"
#include "support.hpp"

namespace kudos {
namespace {

using namespace test;

// Everything that a cycle asks of a batch.
Status run_whole_batch(std::span<const CurrencyPosting> currency, std::span<const StatPosting> stats,
                       const std::vector<std::vector<TargetState>> &states, std::span<const HoldState> holds,
                       const ProjectionLimits &limits, std::span<const std::int64_t> users)
{
    Batch *batch = nullptr;
    Status status = open_batch(currency, stats, {}, &batch);
    if (!status.ok())
        return status;
    status = validate_batch(*batch, users, limits);
    if (status.ok())
        status = fold_batch(*batch);
    const ColumnType types[] = {{.integer = true, .lowest = -1000_kudos, .highest = 1000000_kudos},
                                {.integer = true, .lowest = -1000_kudos, .highest = 1000000_kudos},
                                {.integer = true, .lowest = -1000_kudos, .highest = 1000000_kudos}};
    for (std::size_t table = 0; status.ok() && table < states.size(); table++)
        status = settle_table(*batch, static_cast<Table>(table), types, states[table]);
    if (status.ok())
        status = skip_missing_workers(*batch, {});
    if (status.ok())
        status = settle_batch_holds(*batch, holds, {});
    if (status.ok())
        status = refuse(*batch, {});
    close_batch(batch);
    return status;
}

TEST(Allocation, ThatFailsAnywhereIsReportedAndLosesNothing)
{
    std::vector<CurrencyPosting> currency;
    std::vector<StatPosting> stats;
    for (std::int64_t user = 1; user <= 20; user++) {
        currency.push_back(spendable(user, user, user == 7 ? -5000_kudos : 5_kudos));
        stats.push_back(user_kudos(user, user == 9 ? 404 : user, "image", 1));
    }
    currency[3].names_reservation = true;
    currency[3].reservation = "upfront";
    currency[3].amount = -3_kudos;
    std::vector<std::int64_t> users;
    for (std::int64_t user = 1; user <= 20; user++)
        users.push_back(user);
    const std::vector<HoldState> holds = {
        {.id = uuid(1), .event = currency[3].event, .business_id = "upfront", .remaining = 10_kudos, .has_event = true}};

    // How many targets of each table there are, learnt from a run that nothing disturbs.
    std::vector<std::vector<TargetState>> states(table_count);
    {
        OpenBatch learnt(currency, stats);
        learnt.validate(users);
        learnt.fold();
        for (int table = 0; table < table_count; table++)
            states[static_cast<std::size_t>(table)].resize(deltas(*learnt, static_cast<Table>(table)).size());
        for (TargetState &state : states[static_cast<std::size_t>(Table::users)])
            state = {.present = true, .shown = {100_kudos, 0}, .oauth_id = "account"};
    }

    const ProjectionLimits limits = usual_limits();
    long failed = 0;
    for (;;) {
        test::allocations_left = failed;
        const Status status = run_whole_batch(currency, stats, states, holds, limits, users);
        test::allocations_left = test::never;
        if (status.ok())
            break;
        ASSERT_EQ(status.code, Status::Code::out_of_memory) << failed << ": " << status.message;
        failed++;
    }
    EXPECT_GT(failed, 50);
}

} // namespace
} // namespace kudos
