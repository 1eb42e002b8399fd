// Sums the rows of a batch by target (contract, section 3).
#pragma once

#include <span>
#include <vector>

#include "posting.hpp"
#include "target.hpp"

namespace kudos {

// Calls feed(table, column, key) for every target that the row feeds; column is column::user_activity
// for a touch. One row feeds up to four.
template <typename Feed> void for_each_target(const StatPosting &row, Feed &&feed)
{
    const TargetKey user{.user = row.user};
    const TargetKey worker{.uuid = row.worker};
    const TargetKey team{.uuid = row.team};
    const auto worker_and_team = [&](int column) {
        feed(Table::workers, column, worker);
        if (row.has_team)
            feed(Table::teams, column, team);
    };

    if (row.has_user && row.touches)
        feed(Table::users, column::user_activity, user);
    switch (rule_of(row)) {
    case StatRule::user_kudos:
        feed(Table::user_stats, column::value, TargetKey{.user = row.user, .action = row.action});
        break;
    case StatRule::worker_kudos:
        feed(Table::worker_stats, column::value, TargetKey{.uuid = row.worker, .action = row.action});
        worker_and_team(column::kudos);
        break;
    case StatRule::stat_record:
        feed(Table::user_records, column::value,
             TargetKey{.user = row.user, .action = row.action, .record = row.record});
        break;
    case StatRule::stat_contribution:
        worker_and_team(row.action == "contributions" ? column::contributions : column::fulfilments);
        break;
    case StatRule::stat_activity:
    case StatRule::unknown:
        break;
    }
}

constexpr int currency_column(const CurrencyPosting &row) noexcept
{
    return row.escrow ? column::user_evaluating : column::user_kudos;
}

// The deltas of each table, sorted by key, each key once.
struct Fold {
    std::vector<TargetDelta> tables[table_count];

    std::vector<TargetDelta> &of(Table table) { return tables[static_cast<int>(table)]; }
    const std::vector<TargetDelta> &of(Table table) const { return tables[static_cast<int>(table)]; }
};

Fold fold(std::span<const CurrencyPosting *const> currency, std::span<const StatPosting *const> stats);

} // namespace kudos
