#include "settled_ids.hpp"

extern "C" {
#include "portability/instr_time.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "utils/wait_event.h"
}

#include "statement.hpp"

namespace kudos::server {
namespace {

constexpr long poll_every_ms = 5;

// An identity column's own sequence, otherwise the one that the default names. One that goes down,
// cycles, hands out ids in advance (CACHE) or may not be read tells nothing about the ids to come.
constexpr const char *find_sequence =
    "SELECT s.seqrelid, s.seqrelid || '/' || pg_relation_filenode(s.seqrelid),"
    " s.seqincrement > 0 AND NOT s.seqcycle AND s.seqcache = 1 AND has_sequence_privilege(s.seqrelid, 'SELECT')"
    " FROM pg_attribute c CROSS JOIN LATERAL ("
    " SELECT d.objid AS sequence FROM pg_depend d WHERE c.attidentity <> '' AND d.classid = 'pg_class'::regclass"
    " AND d.refclassid = 'pg_class'::regclass AND d.refobjid = c.attrelid AND d.refobjsubid = c.attnum"
    " AND d.deptype = 'i'"
    " UNION SELECT d.refobjid FROM pg_attrdef a JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass"
    " AND d.objid = a.oid AND d.refclassid = 'pg_class'::regclass"
    " WHERE c.attidentity = '' AND a.adrelid = c.attrelid AND a.adnum = c.attnum) found"
    " JOIN pg_sequence s ON s.seqrelid = found.sequence"
    " WHERE c.attrelid = $1 AND c.attname = 'id' AND NOT c.attisdropped";

bool same(const VirtualTransactionId &a, const VirtualTransactionId &b)
{
    return VirtualTransactionIdEquals(a, b);
}

bool any_left(std::span<const VirtualTransactionId> waited_for, std::span<const VirtualTransactionId> holders)
{
    for (const VirtualTransactionId &one : waited_for)
        for (const VirtualTransactionId &holder : holders)
            if (same(one, holder))
                return true;
    return false;
}

// Whoever draws an id locks the sequence first, and keeps that lock until his transaction is over,
// be it prepared. Freed once the rows that he wrote are visible, or gone.
std::span<const VirtualTransactionId> drawing(const LOCKTAG &sequence)
{
    int count;
    const VirtualTransactionId *holders = GetLockConflicts(&sequence, ShareLock, &count);
    return {holders, static_cast<std::size_t>(count)};
}

bool drawn_by_us(const LOCKTAG &sequence)
{
#if PG_VERSION_NUM >= 170000
    return LockHeldByMe(&sequence, RowExclusiveLock, false);
#else
    return LockHeldByMe(&sequence, RowExclusiveLock);
#endif
}

// Not by pg_sequence_last_value(): that takes the lock by which we know who has drawn an id.
int64 last_value(Oid sequence)
{
    const char *name =
        quote_qualified_identifier(get_namespace_name(get_rel_namespace(sequence)), get_rel_name(sequence));
    const char *sql =
        psprintf("SELECT CASE WHEN s.is_called THEN s.last_value ELSE s.last_value - 1 END FROM %s s", name);
    if (SPI_execute(sql, true, 0) != SPI_OK_SELECT || SPI_processed != 1)
        elog(ERROR, "could not read sequence %s", name);
    return Rows().integer(0, 1);
}

} // namespace

Numbering numbering_of(Oid archive)
{
    Numbering numbering{};
    Oid types[] = {OIDOID};
    Datum parameters[] = {ObjectIdGetDatum(archive)};
    if (SPI_execute_with_args(find_sequence, 1, types, parameters, nullptr, true, 0) != SPI_OK_SELECT)
        elog(ERROR, "could not look for the sequence of an archive");
    const Rows rows;
    if (rows.count() != 1 || !rows.boolean(0, 3))
        return numbering;
    numbering.sequence = DatumGetObjectId(rows.datum(0, 1));
    const std::string_view name = rows.text(0, 2);
    numbering.name = pnstrdup(name.data(), name.size());
    numbering.last = last_value(numbering.sequence);
    return numbering;
}

bool settles(const Numbering &numbering)
{
    if (!numbering.known())
        return false;
    LOCKTAG sequence;
    SET_LOCKTAG_RELATION(sequence, MyDatabaseId, numbering.sequence);
    // Our own transaction may have drawn ids that a statement around us is yet to write.
    if (drawn_by_us(sequence))
        return false;
    const std::span<const VirtualTransactionId> waited_for = drawing(sequence);
    instr_time start;
    INSTR_TIME_SET_CURRENT(start);
    while (any_left(waited_for, drawing(sequence))) {
        CHECK_FOR_INTERRUPTS();
        instr_time spent;
        INSTR_TIME_SET_CURRENT(spent);
        INSTR_TIME_SUBTRACT(spent, start);
        if (INSTR_TIME_GET_MILLISEC(spent) >= kudos_lock_timeout)
            return false;
        (void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, poll_every_ms, PG_WAIT_EXTENSION);
        ResetLatch(MyLatch);
    }
    return true;
}

} // namespace kudos::server
