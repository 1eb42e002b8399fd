#include "floor.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "no_server_headers.hpp"

namespace kudos {
namespace {

// First code point of each run of ten decimal digits (Unicode category Nd) that int() reads.
constexpr std::array<std::uint32_t, 68> decimal_zeros = {
    0x30,    0x660,   0x6F0,   0x7C0,   0x966,   0x9E6,   0xA66,   0xAE6,   0xB66,   0xBE6,   0xC66,   0xCE6,
    0xD66,   0xDE6,   0xE50,   0xED0,   0xF20,   0x1040,  0x1090,  0x17E0,  0x1810,  0x1946,  0x19D0,  0x1A80,
    0x1A90,  0x1B50,  0x1BB0,  0x1C40,  0x1C50,  0xA620,  0xA8D0,  0xA900,  0xA9D0,  0xA9F0,  0xAA50,  0xABF0,
    0xFF10,  0x104A0, 0x10D30, 0x11066, 0x110F0, 0x11136, 0x111D0, 0x112F0, 0x11450, 0x114D0, 0x11650, 0x116C0,
    0x11730, 0x118E0, 0x11950, 0x11C50, 0x11D50, 0x11DA0, 0x11F50, 0x16A60, 0x16AC0, 0x16B50, 0x1D7CE, 0x1D7D8,
    0x1D7E2, 0x1D7EC, 0x1D7F6, 0x1E140, 0x1E2F0, 0x1E4F0, 0x1E950, 0x1FBF0};

// White space that int() strips from both ends: not U+001C to U+001F, although str.isspace() has them.
bool is_space(char32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_hex_digit(char32_t c)
{
    return (c >= U'0' && c <= U'9') || (c >= U'a' && c <= U'f') || (c >= U'A' && c <= U'F');
}

// int() first makes every decimal digit the ASCII one, then looks for a prefix.
char32_t ascii_digit(char32_t c)
{
    const auto above = std::upper_bound(decimal_zeros.begin(), decimal_zeros.end(), c);
    const std::uint32_t value = above == decimal_zeros.begin() ? 10 : c - *(above - 1);
    return value < 10 ? U'0' + value : c;
}

// The server keeps valid text only, so a lenient decoder is enough.
std::u32string decode_utf8(std::string_view text)
{
    std::u32string points;
    for (std::size_t i = 0; i < text.size();) {
        const auto lead = static_cast<unsigned char>(text[i++]);
        int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
        std::uint32_t point = more == 0 ? lead : lead & (0x3Fu >> more);
        while (more-- > 0 && i < text.size())
            point = point << 6 | (static_cast<unsigned char>(text[i++]) & 0x3F);
        points.push_back(point);
    }
    return points;
}

void remove_all(std::u32string &text, std::u32string_view part)
{
    // Left to right and once each, as str.replace() does: what closes up is not looked at again.
    std::u32string kept;
    for (std::size_t from = 0;;) {
        const std::size_t at = text.find(part, from);
        kept.append(text, from, at == std::u32string::npos ? at : at - from);
        if (at == std::u32string::npos)
            break;
        from = at + part.size();
    }
    text = kept;
}

// What int(text, 16) takes.
bool is_python_hex_integer(std::u32string digits)
{
    std::transform(digits.begin(), digits.end(), digits.begin(), ascii_digit);
    std::u32string_view text = digits;
    while (!text.empty() && is_space(text.front()))
        text.remove_prefix(1);
    while (!text.empty() && is_space(text.back()))
        text.remove_suffix(1);
    if (!text.empty() && (text.front() == U'+' || text.front() == U'-'))
        text.remove_prefix(1);
    if (text.size() >= 2 && text[0] == U'0' && (text[1] == U'x' || text[1] == U'X')) {
        text.remove_prefix(2);
        if (!text.empty() && text.front() == U'_')
            text.remove_prefix(1);
    }
    bool digit_before = false;
    for (const char32_t c : text) {
        if (c == U'_' ? !digit_before : !is_hex_digit(c))
            return false;
        digit_before = c != U'_';
    }
    return digit_before;
}

} // namespace

bool is_pseudonymous(std::string_view oauth_id)
{
    std::u32string text = decode_utf8(oauth_id);
    remove_all(text, U"urn:");
    remove_all(text, U"uuid:");
    const auto brace = [](char32_t c) { return c == U'{' || c == U'}'; };
    text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), brace));
    while (!text.empty() && brace(text.back()))
        text.pop_back();
    remove_all(text, U"-");
    return text.size() == 32 && is_python_hex_integer(text);
}

Cents floor_of(std::string_view oauth_id)
{
    if (oauth_id == "anon")
        return anonymous_floor;
    return is_pseudonymous(oauth_id) ? pseudonymous_floor : registered_floor;
}

} // namespace kudos
