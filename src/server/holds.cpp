#include "holds.hpp"

#include <algorithm>

#include "halving.hpp"
#include "session.hpp"
#include "statement.hpp"

namespace kudos::server {
namespace {

Statement lock_holds_statement[lock_modes];
Statement pending_events_statement;
Statement write_holds_statement;

void write_lock_holds(StringInfo sql, const Schema &schema, int mode)
{
    appendStringInfo(sql,
                     "SELECT h.id, h.business_id::text, h.event_id, h.remaining_amount::text, h.tableoid, h.ctid"
                     " FROM %s h WHERE (h.business_id = ANY ($1) OR h.event_id = ANY ($2)) AND h.released_at IS NULL"
                     " ORDER BY h.id",
                     schema.reservations_name);
    if (mode != no_lock)
        appendStringInfo(sql, " FOR NO KEY UPDATE OF h%s", mode == skip_locked ? " SKIP LOCKED" : "");
}

// Over the queue where kudos_ledger has no index on event_id (migrated databases), never over the
// archive. Sees rows that others hold locked, unlike a claim.
void write_pending_events(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql,
                     "SELECT e.event_id FROM unnest($1::uuid[]) e(event_id) WHERE EXISTS (SELECT FROM %s l"
                     " WHERE l.event_id = e.event_id AND NOT l.applied AND l.applied IS FALSE)",
                     schema.ledger_name);
}

void write_write_holds(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql,
                     "UPDATE %s h SET remaining_amount = k.remaining::numeric,"
                     " released_at = CASE WHEN k.released THEN $4 ELSE h.released_at END"
                     " FROM unnest($1::uuid[], $2::text[], $3::bool[]) WITH ORDINALITY k(id, remaining, released, ord)"
                     " WHERE h.id = k.id RETURNING k.ord, h.remaining_amount = k.remaining::numeric"
                     " AND CASE WHEN k.released THEN h.released_at = $4 ELSE h.released_at IS NULL END",
                     schema.reservations_name);
}

void refuse_hold(Batch &batch, const HoldState &hold, Cause cause, std::string_view message = {},
                 std::int32_t holder = 0)
{
    require_ok(refuse(batch, {.table = Table::reservations,
                              .cause = cause,
                              .key = TargetKey{.uuid = hold.event, .action = hold.business_id},
                              .message = message,
                              .holder = holder}));
}

// One whose amount cannot be read, NaN for instance, is left alone with the rows that feed it.
std::span<HoldState> read_holds(const Schema &schema, Batch &batch, LockMode mode)
{
    const Oid types[] = {TEXTARRAYOID, UUIDARRAYOID};
    const Datum parameters[] = {
        array_from(hold_consumptions(batch), TEXTOID,
                   [](const Consumption &consumption) { return text_datum(consumption.business_id); }),
        array_of(folded_events(batch)),
    };
    execute(prepared(lock_holds_statement[mode], schema, write_lock_holds, mode, types), parameters, SPI_OK_SELECT);
    const Rows rows;
    std::span<HoldState> holds = allocate<HoldState>(rows.count());
    for (uint64 row = 0; row < rows.count(); row++) {
        holds[row].id = rows.uuid(row, 1);
        holds[row].business_id = rows.text(row, 2);
        holds[row].has_event = !rows.is_null(row, 3);
        holds[row].event = rows.uuid(row, 3);
        const Parsed parsed = rows.cents(row, 4, holds[row].remaining);
        if (parsed != Parsed::exact && parsed != Parsed::rounded)
            refuse_hold(batch, holds[row], Cause::unreadable);
    }
    return holds;
}

// In id order. A careful attempt passes over holds that are locked, and leaves out the rows that feed them.
std::span<HoldState> lock_holds(const Schema &schema, Batch &batch, Attempt attempt)
{
    if (attempt == Attempt::optimistic)
        return read_holds(schema, batch, wait_for_lock);
    const std::span<HoldState> locked = read_holds(schema, batch, skip_locked);
    const std::span<HoldState> there = read_holds(schema, batch, no_lock);
    const Rows rows;
    for (std::size_t i = 0; i < there.size(); i++) {
        const bool is_ours =
            std::any_of(locked.begin(), locked.end(), [&](const HoldState &l) { return l.id == there[i].id; });
        if (!is_ours)
            refuse_hold(batch, there[i], Cause::locked, {}, rows.holder(i));
    }
    return locked;
}

std::span<Uuid> pending_events(const Schema &schema, std::span<const HoldState> holds)
{
    std::span<Uuid> asked = allocate<Uuid>(holds.size());
    std::size_t count = 0;
    for (const HoldState &hold : holds)
        if (hold.has_event)
            asked[count++] = hold.event;
    if (count == 0)
        return {};
    const Oid types[] = {UUIDARRAYOID};
    const Datum parameters[] = {array_of(std::span<const Uuid>(asked.first(count)))};
    execute(prepared(pending_events_statement, schema, write_pending_events, 0, types), parameters, SPI_OK_SELECT);
    const Rows rows;
    std::span<Uuid> pending = allocate<Uuid>(rows.count());
    for (uint64 row = 0; row < rows.count(); row++)
        pending[row] = rows.uuid(row, 1);
    return pending;
}

const HoldState &hold_of(const HoldWrite &write, std::span<const HoldState> holds)
{
    return *std::find_if(holds.begin(), holds.end(), [&](const HoldState &hold) { return hold.id == write.id; });
}

void write_holds(const Schema &schema, Batch &batch, std::span<const HoldWrite> writes,
                 std::span<const HoldState> holds)
{
    const Oid types[] = {UUIDARRAYOID, TEXTARRAYOID, BOOLARRAYOID, TIMESTAMPOID};
    const Datum parameters[] = {
        array_from(writes, UUIDOID, [](const HoldWrite &write) { return uuid_datum(write.id); }),
        array_from(writes, TEXTOID, [](const HoldWrite &write) { return cents_datum(write.remaining); }),
        array_from(writes, BOOLOID, [](const HoldWrite &write) { return BoolGetDatum(write.released); }),
        TimestampGetDatum(utc_now()),
    };
    execute(prepared(write_holds_statement, schema, write_write_holds, 0, types), parameters, SPI_OK_UPDATE_RETURNING);
    const Rows rows;
    std::span<bool> written = allocate<bool>(writes.size());
    for (uint64 row = 0; row < rows.count(); row++)
        written[static_cast<std::size_t>(rows.integer(row, 1) - 1)] = rows.boolean(row, 2);
    for (std::size_t i = 0; i < writes.size(); i++)
        if (!written[i])
            refuse_hold(batch, hold_of(writes[i], holds), Cause::not_written);
}

} // namespace

void settle_holds(const Schema &schema, Batch &batch, Attempt attempt)
{
    if (folded_events(batch).empty())
        return;
    const int pinned = pin_plans(schema);
    const std::span<const HoldState> holds = lock_holds(schema, batch, attempt);
    const std::span<const Uuid> pending = pending_events(schema, holds);
    unpin_plans(pinned);
    require_ok(settle_batch_holds(batch, holds, pending));
    write_each(
        attempt, batch, hold_writes(batch),
        [&](std::span<const HoldWrite> chosen) { write_holds(schema, batch, chosen, holds); },
        [&](const HoldWrite &write, Cause cause, std::string_view message) {
            refuse_hold(batch, hold_of(write, holds), cause, message);
        });
}

} // namespace kudos::server
