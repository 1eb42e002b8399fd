#include "holds.hpp"

#include <algorithm>

#include "no_server_headers.hpp"

namespace kudos {
namespace {

bool contains(std::span<const Uuid> sorted, const Uuid &event)
{
    return std::binary_search(sorted.begin(), sorted.end(), event);
}

const Consumption *find(std::span<const Consumption> taken, std::string_view business_id)
{
    const auto at = std::lower_bound(taken.begin(), taken.end(), business_id,
                                     [](const Consumption &c, std::string_view id) { return c.business_id < id; });
    return at != taken.end() && at->business_id == business_id ? &*at : nullptr;
}

} // namespace

std::vector<Consumption> consumptions(std::span<const CurrencyPosting *const> rows)
{
    std::vector<Consumption> taken;
    for (const CurrencyPosting *row : rows)
        if (row->names_reservation && !row->escrow && row->amount < 0)
            taken.push_back({row->reservation, -row->amount});
    std::sort(taken.begin(), taken.end(),
              [](const Consumption &a, const Consumption &b) { return a.business_id < b.business_id; });
    std::size_t last = 0;
    for (std::size_t i = 1; i < taken.size(); i++) {
        if (taken[i].business_id == taken[last].business_id)
            taken[last].amount += taken[i].amount;
        else
            taken[++last] = taken[i];
    }
    if (!taken.empty())
        taken.resize(last + 1);
    return taken;
}

std::vector<Uuid> events_of(std::span<const CurrencyPosting *const> rows)
{
    std::vector<Uuid> events;
    events.reserve(rows.size());
    for (const CurrencyPosting *row : rows)
        events.push_back(row->event);
    std::sort(events.begin(), events.end());
    events.erase(std::unique(events.begin(), events.end()), events.end());
    return events;
}

std::vector<HoldWrite> settle_holds(std::span<const HoldState> holds, std::span<const Consumption> taken,
                                    std::span<const Uuid> folded_events, std::span<const Uuid> pending_events)
{
    std::vector<HoldWrite> writes;
    for (const HoldState &hold : holds) {
        const Consumption *consumed = find(taken, hold.business_id);
        const bool complete =
            hold.has_event && contains(folded_events, hold.event) && !contains(pending_events, hold.event);
        if (consumed == nullptr && !complete)
            continue;
        HoldWrite write{.id = hold.id, .remaining = hold.remaining};
        if (consumed != nullptr)
            write.remaining -= std::min(write.remaining, consumed->amount);
        if (complete)
            write.remaining = 0;
        write.released = write.remaining == 0;
        writes.push_back(write);
    }
    return writes;
}

} // namespace kudos
