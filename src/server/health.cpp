// What operators read: kudos_health() and the view kudos_projector_stats (contract, section 11).
#include "pg.hpp"

extern "C" {
#include "access/htup_details.h"
#include "commands/dbcommands.h"
#include "funcapi.h"
#include "utils/resowner.h"
}

#include <algorithm>

#include "entry.h"
#include "session.hpp"
#include "shared_state.hpp"
#include "statement.hpp"

namespace kudos::server {
namespace {

Statement queue_statement;

// Seconds from a naive UTC time to $1, likewise; none to a later one, which a clock that stepped back leaves
// behind. A row dated infinity must not make health fail.
const char *seconds_since(const char *time)
{
    return psprintf("CASE WHEN %s > $1 THEN 0 ELSE (extract(epoch FROM $1) - extract(epoch FROM %s))::float8 END", time,
                    time);
}

// One row of the first columns of kudos_health(), in its order.
void write_queue(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(
        sql,
        "SELECT coalesce((SELECT c.mode::text FROM %s c WHERE c.id = 1), 'shadow'),"
        " l.rows + e.rows, l.rows, e.rows, %s, %s, %s, q.rows, %s, %s, (SELECT %s FROM %s s WHERE s.id = 1),"
        " h.rows, %s",
        schema.control_name, seconds_since("least(l.oldest, e.oldest)"), seconds_since("l.oldest"),
        seconds_since("e.oldest"), seconds_since("q.oldest"), seconds_since("q.newest"), seconds_since("s.applied_at"),
        schema.state_name, seconds_since("h.oldest"));
    appendStringInfo(sql,
                     " FROM (SELECT count(*) AS rows, min(created) AS oldest FROM %s"
                     " WHERE NOT applied AND applied IS FALSE) l,"
                     " (SELECT count(*) AS rows, min(created) AS oldest FROM %s WHERE NOT applied AND applied IS FALSE"
                     " AND NOT quarantined AND quarantined IS FALSE) e,"
                     " (SELECT count(*) AS rows, min(quarantined_at) AS oldest, max(quarantined_at) AS newest FROM %s"
                     " WHERE quarantined IS TRUE) q,"
                     " (SELECT count(*) AS rows, min(created) AS oldest FROM %s"
                     " WHERE released_at IS NULL AND remaining_amount > 0) h",
                     schema.ledger_name, schema.stat_events_name, schema.stat_events_name, schema.reservations_name);
}

constexpr int queue_columns = 13;
constexpr int health_columns = queue_columns + 12;

struct Row {
    Datum value[health_columns];
    bool null[health_columns];
};

// Fills the columns of the queue; as the ledger's owner, since pg_monitor may read no Horde table.
void read_queue(const Schema &schema, MemoryContext results, Row *row)
{
    const Acting acting = act_as_ledger_owner(schema);
    keep_ledger_owner(schema);
    SPI_connect();
    const Oid types[] = {TIMESTAMPOID};
    const Datum parameters[] = {TimestampGetDatum(utc_now())};
    SPIPlanPtr plan = prepared(queue_statement, schema, write_queue, 0, types);
    execute(plan, parameters, SPI_OK_SELECT);
    for (int c = 0; c < queue_columns; c++) {
        const Datum value = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, c + 1, &row->null[c]);
        MemoryContext before = MemoryContextSwitchTo(results);
        if (!row->null[c])
            row->value[c] = c == 0 ? PointerGetDatum(DatumGetTextPCopy(value)) : value;
        MemoryContextSwitchTo(before);
    }
    SPI_finish();
    stop_acting(acting);
}

// What keeps this database from being folded at all, in a subtransaction of its own: a health check
// must answer exactly when something is wrong.
char *read_queue_or_problem(Row *row)
{
    MemoryContext before = CurrentMemoryContext;
    ResourceOwner owner = CurrentResourceOwner;
    char *volatile problem = nullptr;
    BeginInternalSubTransaction(nullptr);
    PG_TRY();
    {
        const Schema &schema = current_schema();
        read_queue(schema, before, row);
        require_foldable(schema);
        ReleaseCurrentSubTransaction();
    }
    PG_CATCH();
    {
        MemoryContextSwitchTo(before);
        ErrorData *error = CopyErrorData();
        FlushErrorState();
        RollbackAndReleaseCurrentSubTransaction();
        problem = error->hint != nullptr ? psprintf("%s HINT: %s", error->message, error->hint) : error->message;
    }
    PG_END_TRY();
    MemoryContextSwitchTo(before);
    CurrentResourceOwner = owner;
    return problem;
}

void set_text(Datum *value, bool *null, const char *text)
{
    *null = text == nullptr || text[0] == '\0';
    *value = *null ? Datum{0} : CStringGetTextDatum(text);
}

void set_seconds_since(Datum *value, bool *null, TimestampTz then)
{
    *null = then == 0;
    *value = Float8GetDatum(static_cast<double>(std::max(GetCurrentTimestamp() - then, int64{0})) / USECS_PER_SEC);
}

Datum stuck_targets(const Slot &slot)
{
    const int count = std::min(slot.stuck_count, max_stuck_shown);
    std::span<Datum> texts = allocate<Datum>(static_cast<std::size_t>(count));
    for (int i = 0; i < count; i++)
        texts[static_cast<std::size_t>(i)] = CStringGetTextDatum(slot.stuck[i]);
    return PointerGetDatum(construct_array(texts.data(), count, TEXTOID, -1, false, TYPALIGN_INT));
}

// Beside the stuck targets, one for one.
Datum blocking_pids(const Slot &slot)
{
    const int count = std::min(slot.stuck_count, max_stuck_shown);
    std::span<Datum> pids = allocate<Datum>(static_cast<std::size_t>(count));
    std::span<bool> nulls = allocate<bool>(static_cast<std::size_t>(count));
    for (int i = 0; i < count; i++) {
        pids[static_cast<std::size_t>(i)] = Int32GetDatum(slot.blocking_pid[i]);
        nulls[static_cast<std::size_t>(i)] = slot.blocking_pid[i] == 0;
    }
    return array_with_nulls(pids, nulls, INT4OID);
}

const char *problem_of(const char *schema_problem, const Slot &slot)
{
    if (schema_problem != nullptr)
        return schema_problem;
    const char *no_worker = why_no_worker();
    if (no_worker != nullptr)
        return no_worker;
    if (slot.reason[0] != '\0')
        return slot.reason;
    return slot.consecutive_errors > 0 ? slot.last_error : nullptr;
}

void fill_worker(Row *row, const char *schema_problem)
{
    Slot slot;
    memset(static_cast<void *>(&slot), 0, sizeof(slot));
    const bool has_slot = read_slot(get_database_name(MyDatabaseId), &slot);
    Datum *value = row->value + queue_columns;
    bool *null = row->null + queue_columns;
    set_text(&value[0], &null[0], problem_of(schema_problem, slot));
    set_text(&value[1], &null[1], has_slot ? state_text(slot.state) : nullptr);
    null[2] = slot.pid == 0;
    value[2] = Int32GetDatum(slot.pid);
    set_seconds_since(&value[3], &null[3], slot.last_tick_at);
    set_seconds_since(&value[4], &null[4], slot.last_fold_at);
    null[5] = !has_slot;
    value[5] = Int32GetDatum(slot.consecutive_errors);
    set_text(&value[6], &null[6], slot.last_error);
    set_text(&value[7], &null[7], slot.last_error_at != 0 ? unpack_sql_state(slot.last_error_code) : nullptr);
    set_seconds_since(&value[8], &null[8], slot.last_error_at);
    null[9] = !has_slot;
    value[9] = Int32GetDatum(slot.stuck_count);
    null[10] = !has_slot;
    value[10] = stuck_targets(slot);
    null[11] = !has_slot;
    value[11] = blocking_pids(slot);
}

} // namespace
} // namespace kudos::server

Datum kudos_entry_health(FunctionCallInfo fcinfo)
{
    using namespace kudos::server;
    TupleDesc columns;
    if (get_call_result_type(fcinfo, nullptr, &columns) != TYPEFUNC_COMPOSITE || columns->natts != health_columns)
        elog(ERROR, "kudos_health() has other columns than the library fills");
    Row row;
    memset(&row, 0, sizeof(row));
    for (bool &null : row.null)
        null = true;
    fill_worker(&row, read_queue_or_problem(&row));
    return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(columns), row.value, row.null));
}

Datum kudos_entry_stats(FunctionCallInfo fcinfo)
{
    using namespace kudos::server;
    InitMaterializedSRF(fcinfo, 0);
    auto *results = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
    if (shared_state() == nullptr)
        return Datum{0};
    Slot *slot = static_cast<Slot *>(palloc(sizeof(Slot)));
    for (const Slot &shared : shared_state()->slot) {
        lock_shared(LW_SHARED);
        *slot = shared;
        unlock_shared();
        if (slot->database[0] == '\0')
            continue;
        constexpr int fixed = 19;
        Datum values[fixed + phase_count];
        bool nulls[fixed + phase_count] = {};
        int c = 0;
        const auto add_time = [&](TimestampTz time) {
            nulls[c] = time == 0;
            values[c++] = TimestampTzGetDatum(time);
        };
        values[c++] = CStringGetTextDatum(readable(slot->database));
        nulls[c] = slot->pid == 0;
        values[c++] = Int32GetDatum(slot->pid);
        values[c++] = CStringGetTextDatum(state_text(slot->state));
        set_text(&values[c], &nulls[c], readable(slot->reason));
        c++;
        add_time(slot->started_at);
        for (const int64 counter :
             {slot->ticks, slot->cycles, slot->currency_rows, slot->stat_rows, slot->quarantined_rows,
              slot->floor_adjustments, slot->promoted_users, slot->drained_users, slot->lock_waits, slot->errors})
            values[c++] = Int64GetDatum(counter);
        add_time(slot->last_tick_at);
        add_time(slot->last_fold_at);
        add_time(slot->last_error_at);
        set_text(&values[c], &nulls[c], readable(slot->last_error));
        c++;
        for (const double milliseconds : slot->phase_ms)
            values[c++] = Float8GetDatum(milliseconds);
        tuplestore_putvalues(results->setResult, results->setDesc, values, nulls);
    }
    return Datum{0};
}
