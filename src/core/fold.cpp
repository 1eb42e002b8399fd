#include "fold.hpp"

#include <algorithm>

#include "no_server_headers.hpp"

namespace kudos {
namespace {

void merge(TargetDelta &into, const TargetDelta &from)
{
    for (int c = 0; c < max_value_columns; c++) {
        into.delta[c] += from.delta[c];
        into.fed[c] = into.fed[c] || from.fed[c];
    }
    if (from.has_activity)
        into.activity = into.has_activity ? std::max(into.activity, from.activity) : from.activity;
    into.has_activity = into.has_activity || from.has_activity;
}

// Sort by key, then add up neighbours: the order in which targets are locked falls out of it.
void add_up_neighbours(std::vector<TargetDelta> &deltas)
{
    std::sort(deltas.begin(), deltas.end(), [](const auto &a, const auto &b) { return a.key < b.key; });
    std::size_t last = 0;
    for (std::size_t i = 1; i < deltas.size(); i++) {
        if (deltas[i].key == deltas[last].key)
            merge(deltas[last], deltas[i]);
        else
            deltas[++last] = deltas[i];
    }
    if (!deltas.empty())
        deltas.resize(last + 1);
}

} // namespace

Fold fold(std::span<const CurrencyPosting *const> currency, std::span<const StatPosting *const> stats)
{
    Fold folded;
    const auto feed_amount = [&](Table table, int column, const TargetKey &key, Cents amount) {
        TargetDelta delta;
        delta.key = key;
        delta.delta[column] = amount;
        delta.fed[column] = true;
        folded.of(table).push_back(delta);
    };
    const auto feed_activity = [&](const TargetKey &key, std::int64_t created) {
        TargetDelta delta;
        delta.key = key;
        delta.has_activity = true;
        delta.activity = created;
        folded.of(Table::users).push_back(delta);
    };

    for (const CurrencyPosting *row : currency)
        feed_amount(Table::users, currency_column(*row), TargetKey{.user = row->user}, row->amount);
    for (const StatPosting *row : stats)
        for_each_target(*row, [&](Table table, int column, const TargetKey &key) {
            if (table == Table::users)
                feed_activity(key, row->created);
            else
                feed_amount(table, column, key, row->amount);
        });
    for (auto &deltas : folded.tables)
        add_up_neighbours(deltas);
    return folded;
}

} // namespace kudos
