// Read your writes: kudos_wait_applied() (contract, section 11).
#include "pg.hpp"

extern "C" {
#include "nodes/plannodes.h"
#include "pgstat.h"
#include "storage/condition_variable.h"
#include "storage/proc.h"
#include "tcop/pquery.h"
#include "utils/fmgrprotos.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"
#include "utils/uuid.h"
}

#include <algorithm>

#include "entry.h"
#include "mode.hpp"
#include "session.hpp"
#include "shared_state.hpp"
#include "statement.hpp"
#include "steady_clock.hpp"

namespace kudos::server {
namespace {

// The Horde's own applier announces nothing: look again at least this often.
constexpr int64 look_again_ms = 1000;

Statement look_statement;

void write_look(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql,
                     "SELECT EXISTS (SELECT FROM %s l WHERE l.event_id = $1 AND NOT l.applied AND l.applied IS FALSE)"
                     " OR EXISTS (SELECT FROM %s e WHERE e.event_id = $1 AND NOT e.applied AND e.applied IS FALSE"
                     " AND NOT e.quarantined AND e.quarantined IS FALSE),"
                     " (SELECT min(e.quarantine_reason)::text FROM %s e WHERE e.event_id = $1 AND e.quarantined"
                     " AND NOT e.applied)",
                     schema.ledger_name, schema.stat_events_name, schema.stat_events_name);
}

enum class Progress : uint8 { pending, applied, quarantined, not_folded };

Progress look(Datum event)
{
    const Schema &schema = current_schema();
    Progress progress = Progress::pending;
    as_ledger_owner(schema, [&](MemoryContext results) {
        if (read_mode(schema) == LedgerMode::shadow) {
            progress = Progress::not_folded;
            return;
        }
        const Oid types[] = {UUIDOID};
        const Datum parameters[] = {event};
        const int pinned = pin_plans(schema);
        execute(prepared(look_statement, schema, write_look, 0, types), parameters, SPI_OK_SELECT);
        unpin_plans(pinned);
        const Rows rows;
        if (!rows.is_null(0, 2)) {
            MemoryContext before = MemoryContextSwitchTo(results);
            ereport(NOTICE, (errmsg("stat rows of the event are quarantined"),
                             errdetail("The reason is %s.", pnstrdup(rows.text(0, 2).data(), rows.text(0, 2).size())),
                             errhint("SELECT * FROM kudos_quarantine shows them.")));
            MemoryContextSwitchTo(before);
            progress = Progress::quarantined;
        } else if (!rows.boolean(0, 1)) {
            progress = Progress::applied;
        }
    });
    return progress;
}

// "SELECT kudos_wait_applied(...)" and nothing else: nothing that runs after the wait reads by the
// snapshot of that query.
bool is_whole_query(FunctionCallInfo fcinfo)
{
    if (IsolationUsesXactSnapshot() || ActivePortal == nullptr || ActivePortal->queryDesc == nullptr)
        return false;
    const PlannedStmt *query = ActivePortal->queryDesc->plannedstmt;
    const Plan *plan = query->planTree;
    if (query->commandType != CMD_SELECT || query->hasModifyingCTE || !IsA(plan, Result) || plan->lefttree != nullptr ||
        query->subplans != NIL || list_length(plan->targetlist) != 1)
        return false;
    const Node *target = reinterpret_cast<const Node *>(linitial_node(TargetEntry, plan->targetlist)->expr);
    return IsA(target, FuncExpr) && reinterpret_cast<const FuncExpr *>(target)->funcid == fcinfo->flinfo->fn_oid;
}

// A waiter must not hold back vacuum. The query's snapshot stays registered, since the executor will
// drop it, but is advertised no longer; the next snapshot taken advertises its own (procarray.c,
// GetSnapshotData).
void stop_advertising_snapshot(bool whole_query)
{
    InvalidateCatalogSnapshot();
    if (whole_query)
        MyProc->xmin = InvalidTransactionId;
}

bool wait_applied(FunctionCallInfo fcinfo, Datum event, int64 deadline)
{
    const bool whole_query = is_whole_query(fcinfo);
    ConditionVariable *folded = &shared_state()->something_folded;
    // Announced before looking, so that a fold between the look and the sleep wakes us.
    ConditionVariablePrepareToSleep(folded);
    Progress progress = look(event);
    while (progress == Progress::pending) {
        const int64 left = deadline - steady_ms();
        if (left <= 0)
            break;
        stop_advertising_snapshot(whole_query);
        (void)ConditionVariableTimedSleep(folded, static_cast<long>(std::min(left, look_again_ms)), PG_WAIT_EXTENSION);
        progress = look(event);
    }
    ConditionVariableCancelSleep();
    return progress == Progress::applied;
}

} // namespace
} // namespace kudos::server

Datum kudos_entry_wait_applied(FunctionCallInfo fcinfo)
{
    using namespace kudos::server;
    PreventCommandDuringRecovery("kudos_wait_applied()");
    if (shared_state() == nullptr)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("kudos_wait_applied() needs kudos_projector to be preloaded"),
                        errhint("Add it to shared_preload_libraries and restart the server.")));
    const TimestampTz now = GetCurrentTimestamp();
    const TimestampTz until =
        DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval, TimestampTzGetDatum(now), PG_GETARG_DATUM(1)));
    PG_RETURN_BOOL(wait_applied(fcinfo, PG_GETARG_DATUM(0), steady_ms() + TimestampDifferenceMilliseconds(now, until)));
}
