// Holds: what a batch consumes and releases of them (contract, section 5).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "posting.hpp"

namespace kudos {

// What the debits of a batch take from the hold that they name.
struct Consumption {
    std::string_view business_id{};
    Cents amount = 0; // > 0
};

// An unreleased hold as it was read under its lock.
struct HoldState {
    Uuid id{};
    Uuid event{};
    std::string_view business_id{};
    Cents remaining = 0;
    bool has_event = false;
};

struct HoldWrite {
    Uuid id{};
    Cents remaining = 0;
    bool released = false;
};

// Sorted by business id, each once.
std::vector<Consumption> consumptions(std::span<const CurrencyPosting *const> rows);

// The events of the rows, sorted, each once.
std::vector<Uuid> events_of(std::span<const CurrencyPosting *const> rows);

// folded_events and pending_events must be sorted; an event is complete when it was folded here
// and is not pending.
std::vector<HoldWrite> settle_holds(std::span<const HoldState> holds, std::span<const Consumption> taken,
                                    std::span<const Uuid> folded_events, std::span<const Uuid> pending_events);

} // namespace kudos
