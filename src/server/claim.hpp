// Step 2 of the cycle: which rows it works on (contract, section 2).
#pragma once

#include "pg.hpp"

#include <span>

#include "schema.hpp"

namespace kudos::server {

// Where the scans of this tick go on; a tick starts from the beginning, so a late commit of a
// lower id is found by the next tick at the latest.
struct ScanPosition {
    std::int64_t after_ledger_id = PG_INT64_MIN;
    std::int64_t after_stat_id = PG_INT64_MIN;
};

struct Claim {
    std::span<CurrencyPosting> currency;
    std::span<StatPosting> stats;
    bool settled = true; // both came back short of the batch size

    bool empty() const { return currency.empty() && stats.empty(); }
};

// Locks and reads up to batch_size rows of each kind, by id; rows locked by others are passed
// over, and so are the rows of withheld targets. The text of a claim lives as long as the cycle's
// SPI connection.
Claim claim_postings(const Schema &schema, const ScanPosition &position, int batch_size,
                     std::span<const Withheld> withheld);

// What is queued; unlike a claim, this sees rows that others hold locked. Needs an SPI connection.
struct QueuedRows {
    std::int64_t currency;
    std::int64_t stats;
};
QueuedRows count_queued(const Schema &schema);

// Locks and reads the quarantined stat rows of an event, by id; waits for their locks.
std::span<StatPosting> claim_quarantined_event(const Schema &schema, const Uuid &event);

// Whether both claims, as they would be planned now in this session, read a queue index. Plans them
// and runs nothing; inside an SPI connection.
struct ClaimPlans {
    bool currency_reads_queue_index;
    bool stats_read_queue_index;
};
ClaimPlans plan_claims(const Schema &schema);

ScanPosition position_after(const Claim &claim, const ScanPosition &before);

} // namespace kudos::server
