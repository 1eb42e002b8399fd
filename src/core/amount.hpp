// Exact decimal money: every amount is a whole number of cents (contract, section 3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kudos {

// NUMERIC(20,2) in cents does not fit 64 bits.
__extension__ using Cents = __int128;

constexpr Cents cents_per_unit = 100;

enum class Parsed : std::uint8_t {
    exact,      // the text is a number of whole cents
    rounded,    // it had more than two places; rounded half away from zero
    not_finite, // NaN or an infinity
    malformed,  // no number at all, or one that 128 bits cannot hold
};

// Reads what the server prints for numeric, the integers and float8 (exponents included).
Parsed parse_cents(std::string_view text, Cents &cents) noexcept;

constexpr std::size_t cents_text_size = 48;

// Writes "-12.34" into text, without a terminator; never "-0.00". Gives the length.
std::size_t format_cents(Cents cents, char (&text)[cents_text_size]) noexcept;

// Rounds to whole units, half away from zero, as the server's numeric to bigint cast does.
constexpr Cents round_to_units(Cents cents) noexcept
{
    const Cents half = cents_per_unit / 2;
    return (cents < 0 ? cents - half : cents + half) / cents_per_unit;
}

} // namespace kudos
