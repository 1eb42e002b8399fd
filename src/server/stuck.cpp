#include "stuck.hpp"

extern "C" {
#include "utils/fmgrprotos.h"
}

#include "memory.hpp"
#include "shared_state.hpp"
#include "statement.hpp"

namespace kudos::server {
namespace {

// The key of a target that is stuck, as its table has it.
const char *describe_key(const Withheld &held)
{
    const bool by_uuid = held.table == Table::worker_stats || held.table == Table::workers ||
                         held.table == Table::teams || (held.table == Table::stat_rows && !(held.key.uuid == Uuid{}));
    StringInfoData key;
    initStringInfo(&key);
    if (by_uuid)
        appendStringInfo(&key, " %s", DatumGetCString(DirectFunctionCall1(uuid_out, uuid_datum(held.key.uuid))));
    else if (held.table != Table::reservations)
        appendStringInfo(&key, " %ld", static_cast<long>(held.key.user));
    for (const std::string_view part : {held.key.action, held.key.record})
        if (!part.empty())
            appendStringInfo(&key, " %.*s", static_cast<int>(part.size()), part.data());
    return key.data;
}

void describe(const Withheld &held, char *text, Size size)
{
    constexpr const char *names[] = {"users", "user_stats",         "worker_stats", "user_records",     "workers",
                                     "teams", "kudos_reservations", "kudos_ledger", "kudos_stat_events"};
    const std::string_view cause = cause_text(held.cause);
    keep_text(text, size,
              psprintf("%s%s (%.*s%s%.*s)", names[static_cast<int>(held.table)], describe_key(held),
                       static_cast<int>(cause.size()), cause.data(), held.message.empty() ? "" : ": ",
                       static_cast<int>(held.message.size()), held.message.data()));
}

} // namespace

int count_stuck(const Tick &tick)
{
    int count = tick.withheld_count;
    for (const char *why : tick.undone)
        count += why != nullptr ? 1 : 0;
    return count;
}

void describe_stuck(const Tick &tick, int index, char *text, Size size)
{
    constexpr const char *steps[] = {"promotion", "heartbeat"};
    if (index < tick.withheld_count) {
        describe(tick.withheld[index], text, size);
        return;
    }
    for (int step = 0; step < steps_beside_the_fold; step++)
        if (tick.undone[step] != nullptr && index-- == tick.withheld_count)
            keep_text(text, size, psprintf("%s (raised: %s)", steps[step], tick.undone[step]));
}

int32 blocking_process(const Tick &tick, int index)
{
    return index < tick.withheld_count ? tick.withheld[index].holder : 0;
}

} // namespace kudos::server
