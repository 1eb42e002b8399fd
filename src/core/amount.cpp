#include "amount.hpp"

#include <algorithm>

#include "no_server_headers.hpp"

namespace kudos {
namespace {

// Far above NUMERIC(20,2), and so far below what 128 bits hold that the largest batch can be summed.
constexpr int max_digits = 32;

bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

// Splits "digits[.digits][e[+-]digits]" after the sign; false when it is anything else.
struct Scanned {
    std::string_view whole;
    std::string_view fraction;
    int exponent = 0;
};

bool scan(std::string_view text, Scanned &number)
{
    const auto digits_end = std::find_if_not(text.begin(), text.end(), is_digit);
    number.whole = text.substr(0, static_cast<std::size_t>(digits_end - text.begin()));
    text.remove_prefix(number.whole.size());
    if (!text.empty() && text.front() == '.') {
        text.remove_prefix(1);
        const auto end = std::find_if_not(text.begin(), text.end(), is_digit);
        number.fraction = text.substr(0, static_cast<std::size_t>(end - text.begin()));
        text.remove_prefix(number.fraction.size());
    }
    if (number.whole.empty() && number.fraction.empty())
        return false;
    if (text.empty())
        return true;
    if (text.front() != 'e' && text.front() != 'E')
        return false;
    text.remove_prefix(1);
    const bool negative = !text.empty() && text.front() == '-';
    if (!text.empty() && (text.front() == '-' || text.front() == '+'))
        text.remove_prefix(1);
    if (text.empty() || text.size() > 3 || !std::all_of(text.begin(), text.end(), is_digit))
        return false;
    for (const char c : text)
        number.exponent = number.exponent * 10 + (c - '0');
    if (negative)
        number.exponent = -number.exponent;
    return true;
}

} // namespace

Parsed parse_cents(std::string_view text, Cents &cents) noexcept
{
    const bool negative = !text.empty() && text.front() == '-';
    if (!text.empty() && (text.front() == '-' || text.front() == '+'))
        text.remove_prefix(1);
    if (text == "NaN" || text == "Infinity" || text == "inf")
        return Parsed::not_finite;

    Scanned number;
    if (!scan(text, number))
        return Parsed::malformed;

    // The digit at position i of whole + fraction weighs 10^(whole.size() + exponent - 1 - i).
    const std::size_t digits = number.whole.size() + number.fraction.size();
    const auto digit_at = [&](std::size_t i) {
        return i < number.whole.size() ? number.whole[i] : number.fraction[i - number.whole.size()];
    };
    // How many leading digits count whole cents.
    const long kept = static_cast<long>(number.whole.size()) + number.exponent + 2;

    Cents value = 0;
    int significant = 0;
    for (long i = 0; i < kept; i++) {
        const int digit = static_cast<std::size_t>(i) < digits ? digit_at(static_cast<std::size_t>(i)) - '0' : 0;
        if (value != 0 && ++significant >= max_digits)
            return Parsed::malformed;
        value = value * 10 + digit;
    }

    Parsed parsed = Parsed::exact;
    for (std::size_t i = static_cast<std::size_t>(std::max(kept, 0L)); i < digits; i++)
        if (digit_at(i) != '0')
            parsed = Parsed::rounded;
    if (parsed == Parsed::rounded && kept >= 0 && digit_at(static_cast<std::size_t>(kept)) >= '5')
        value++;

    cents = negative ? -value : value;
    return parsed;
}

std::size_t format_cents(Cents cents, char (&text)[cents_text_size]) noexcept
{
    __extension__ using Unsigned = unsigned __int128;
    Unsigned rest = cents < 0 ? -static_cast<Unsigned>(cents) : static_cast<Unsigned>(cents);
    char reversed[cents_text_size];
    std::size_t size = 0;
    while (rest != 0 || size < 4) {
        if (size == 2)
            reversed[size++] = '.';
        reversed[size++] = static_cast<char>('0' + static_cast<int>(rest % 10));
        rest /= 10;
    }
    if (cents < 0)
        reversed[size++] = '-';
    std::reverse_copy(reversed, reversed + size, text);
    return size;
}

} // namespace kudos
