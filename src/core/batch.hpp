// One claimed batch on its way through the cycle: the only door between the server layer and core.
//
// Plain values in, plain values out. Nothing here throws; what can fail answers with a Status, and
// the server layer raises the error after core has returned. Spans stay valid until the batch is
// destroyed. The calls follow the steps of the contract, section 2:
//
//   open -> named_users -> validate -> (mark) -> fold -> deltas/settle per table -> holds
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "holds.hpp"
#include "posting.hpp"
#include "target.hpp"
#include "validate.hpp"

namespace kudos {

struct Status {
    enum class Code : std::uint8_t { ok, out_of_memory, internal_error } code = Code::ok;
    char message[160] = {};
    bool ok() const { return code == Code::ok; }
};

enum class Cause : std::uint8_t {
    overflow,    // the new value is outside the column's range
    unreadable,  // the column holds NaN or an infinity, or the posting does
    missing,     // the user of a currency row is not there
    not_written, // a trigger or rule vetoed or changed the row
    locked,      // somebody holds the row's lock
    raised,      // a trigger, rule or constraint of the table raised an error
};

std::string_view cause_text(Cause cause) noexcept;

// A target whose rows are left out: they stay unapplied, everything else folds (section 3,
// Overflow; section 4, Written means written).
struct Withheld {
    Table table = Table::users;
    std::int8_t column = column::any;
    Cause cause = Cause::overflow;
    TargetKey key{};
    std::string_view message{}; // of the error that was raised
    std::int32_t holder = 0;    // process that holds the lock; 0: not known
};

struct QuarantinedEvent {
    Uuid event{};
    Reason reason = Reason::none;
    std::size_t claimed_rows = 0;
};

struct FloorAdjustment {
    std::int64_t user = 0;
    Cents amount = 0; // > 0
};

class Batch; // opaque to the server layer

Status open_batch(std::span<const CurrencyPosting> currency, std::span<const StatPosting> stats,
                  std::span<const Withheld> withheld, Batch **opened) noexcept;
void close_batch(Batch *batch) noexcept;

// Users that claimed stat rows name, ascending; validation asks which of them exist.
std::span<const std::int64_t> named_users(const Batch &batch) noexcept;

// existing_users must be ascending.
Status validate_batch(Batch &batch, std::span<const std::int64_t> existing_users,
                      const ProjectionLimits &limits) noexcept;
std::span<const QuarantinedEvent> quarantined_events(const Batch &batch) noexcept; // ascending by event

// Claimed, valid and not withheld: exactly these are marked applied and folded.
std::span<const std::int64_t> currency_ids(const Batch &batch) noexcept;
std::span<const std::int64_t> stat_ids(const Batch &batch) noexcept;
// Claimed rows whose amount is no finite number of cents; they stay unapplied.
std::span<const std::int64_t> unfoldable_currency_ids(const Batch &batch) noexcept;
std::span<const std::int64_t> unfoldable_stat_ids(const Batch &batch) noexcept;

Status fold_batch(Batch &batch) noexcept;
// Ascending by key.
std::span<const TargetDelta> deltas(const Batch &batch, Table table) noexcept;
// Workers that are about to receive worker_stats rows, ascending; the missing ones are skipped.
std::span<const Uuid> workers_with_stats(const Batch &batch) noexcept;
Status skip_missing_workers(Batch &batch, std::span<const Uuid> existing_workers) noexcept;

// types: one for each value column of the table. states: one for each delta, in the same order.
Status settle_table(Batch &batch, Table table, std::span<const ColumnType> types,
                    std::span<const TargetState> states) noexcept;
std::span<const TargetWrite> writes(const Batch &batch, Table table) noexcept;
std::span<const FloorAdjustment> floor_adjustments(const Batch &batch) noexcept;

// What could not be written after all, to be withheld in another attempt.
Status refuse(Batch &batch, const Withheld &refusal) noexcept;
std::span<const Withheld> refusals(const Batch &batch) noexcept;

std::span<const Consumption> hold_consumptions(const Batch &batch) noexcept;
std::span<const Uuid> folded_events(const Batch &batch) noexcept;
// pending_events: those of folded_events with unapplied currency rows left, in any order.
Status settle_batch_holds(Batch &batch, std::span<const HoldState> holds,
                          std::span<const Uuid> pending_events) noexcept;
std::span<const HoldWrite> hold_writes(const Batch &batch) noexcept;

// The floor of an account, in cents (section 3); the same rule the fold applies.
Status account_floor(std::string_view oauth_id, Cents *floor) noexcept;

// Server frames hold these; a server error jumps over them.
template <typename... Types> constexpr bool jump_safe = (std::is_trivially_destructible_v<Types> && ...);
static_assert(jump_safe<Status, Withheld, QuarantinedEvent, FloorAdjustment, CurrencyPosting, StatPosting, TargetDelta,
                        TargetState, TargetWrite, ColumnType, HoldState, HoldWrite, Consumption, ProjectionLimits>);

} // namespace kudos
