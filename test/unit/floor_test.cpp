#include "floor.hpp"

#include "support.hpp"

namespace kudos {
namespace {

using test::operator""_kudos;

const std::string hex = "0123456789abcdef0123456789ABCDEF";

// 31 or 30 digits, to be completed to 32 characters.
const std::string hex31 = hex.substr(0, 31);
const std::string hex30 = hex.substr(0, 30);

std::string utf8(std::uint32_t point)
{
    const auto tail = [&](int shift) { return static_cast<char>(0x80 | ((point >> shift) & 0x3F)); };
    if (point < 0x80)
        return {static_cast<char>(point)};
    if (point < 0x800)
        return {static_cast<char>(0xC0 | point >> 6), tail(0)};
    if (point < 0x10000)
        return {static_cast<char>(0xE0 | point >> 12), tail(6), tail(0)};
    return {static_cast<char>(0xF0 | point >> 18), tail(12), tail(6), tail(0)};
}

void expect_pseudonymous(std::initializer_list<std::string> accepted)
{
    for (const std::string &oauth_id : accepted)
        EXPECT_TRUE(is_pseudonymous(oauth_id)) << testing::PrintToString(oauth_id);
}

void expect_registered(std::initializer_list<std::string> refused)
{
    for (const std::string &oauth_id : refused)
        EXPECT_FALSE(is_pseudonymous(oauth_id)) << testing::PrintToString(oauth_id);
}

TEST(Pseudonymous, TakesTheUsualSpellingsOfAUuid)
{
    expect_pseudonymous({
        hex,
        "00000000-0000-0000-0000-000000000000",
        "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        "6BA7B810-9DAD-11D1-80B4-00C04FD430C8",
        "{6ba7b810-9dad-11d1-80b4-00c04fd430c8}",
        "urn:uuid:6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    });
}

TEST(Pseudonymous, TakesHyphensAnywhere)
{
    expect_pseudonymous({"-" + hex, hex + "-", "--" + hex + "--", "0--123456789abcdef0123456789abcdef",
                         "0-1-2-3-4-5-6-7-8-9-a-b-c-d-e-f-0123456789abcdef"});
}

TEST(Pseudonymous, TakesAnyBracesAtTheEnds)
{
    expect_pseudonymous({"{{" + hex + "}}", "}" + hex + "{", "{" + hex, hex + "}", "{}{}" + hex, "{-" + hex + "-}"});
}

TEST(Pseudonymous, TakesUrnAndUuidPrefixesAnywhere)
{
    expect_pseudonymous({"uuid:" + hex, "urn:" + hex, hex + "urn:", "0123urn:456789abcdef0123456789abcdef",
                         "uuid:uuid:" + hex, "uurn:uid:" + hex, "{urn:uuid:" + hex + "}", "uuid:urn:" + hex});
}

TEST(Pseudonymous, RemovesPrefixesOnceAndUrnFirst)
{
    expect_registered({"uuuid:rn:" + hex, "ururn:n:" + hex, "uuuid:uid:" + hex});
}

TEST(Pseudonymous, CountsWhiteSpaceInsideThe32AsIntStripsIt)
{
    expect_pseudonymous({" " + hex31, hex31 + " ", " " + hex30 + " ", "\t\n" + hex30, hex30 + "\r\v", hex31 + "\f",
                         utf8(0x85) + hex31, hex31 + utf8(0xA0), utf8(0x1680) + hex31, utf8(0x2000) + hex31,
                         utf8(0x2003) + hex31, hex31 + utf8(0x200A), hex31 + utf8(0x2028), utf8(0x2029) + hex31,
                         utf8(0x202F) + hex31, hex31 + utf8(0x205F), utf8(0x3000) + hex31, " +" + hex30,
                         std::string(31, ' ') + "0"});
    expect_registered({" " + hex, hex + " ", "{ " + hex + "}", "0123456789abcde 0123456789abcdef", "+ " + hex30,
                       "0x " + hex.substr(0, 29), utf8(0x200B) + hex31, utf8(0x180E) + hex31, hex31 + utf8(0xFEFF),
                       std::string(32, ' ')});
}

// str.strip() takes the four separators, int() does not: it looks for C white space in what is ASCII.
TEST(Pseudonymous, DoesNotCountTheAsciiSeparatorsAsWhiteSpace)
{
    expect_registered({"\x1c" + hex31, hex31 + "\x1d", "\x1e" + hex31, hex31 + "\x1f", "\x1c" + utf8(0xA0) + hex30,
                       utf8(0xFF11) + hex30 + "\x1f"});
}

TEST(Pseudonymous, TakesASignAndAHexPrefixAsIntDoes)
{
    expect_pseudonymous({"+" + hex31, "0x" + hex30, "0X" + hex30, "+0x" + hex.substr(0, 29), "0x_" + hex.substr(0, 29),
                         " +0X_" + hex.substr(0, 27)});
    expect_registered({"++" + hex30, "x" + hex31, "00x" + hex.substr(0, 29), "0o" + hex30, "0b1x" + hex.substr(0, 28),
                       "0x+" + hex.substr(0, 29), "0x__" + hex.substr(0, 28), std::string(30, ' ') + "0x",
                       std::string(31, ' ') + "+"});
}

// int() turns every decimal digit into ASCII before it looks for the prefix.
TEST(Pseudonymous, TakesAHexPrefixWithAnyDecimalZero)
{
    expect_pseudonymous({utf8(0xFF10) + "x" + hex30, utf8(0x660) + "X" + hex30});
}

TEST(Pseudonymous, TakesSingleUnderscoresBetweenDigits)
{
    expect_pseudonymous({"0_123456789abcdef0123456789abcde", "0_1_2_3_4_5_6_7_8_9_a_b_c_d_e_ff"});
    expect_registered({"_" + hex31, hex31 + "_", "0__123456789abcdef0123456789abcd", "+_" + hex30, std::string(32, '_'),
                       "0_ " + hex.substr(0, 29)});
}

TEST(Pseudonymous, TakesTheDecimalDigitsOfEveryScript)
{
    for (const std::uint32_t digit : {0x660u, 0x669u, 0x6F0u, 0x966u, 0xE59u, 0x1810u, 0xA620u, 0xFF10u, 0xFF19u,
                                      0x104A9u, 0x1D7CEu, 0x1D7FFu, 0x1E950u, 0x1FBF9u})
        EXPECT_TRUE(is_pseudonymous(hex31 + utf8(digit))) << std::hex << digit;
    std::string all;
    for (int i = 0; i < 32; i++)
        all += utf8(0xFF10 + static_cast<std::uint32_t>(i % 10));
    EXPECT_TRUE(is_pseudonymous(all));
}

TEST(Pseudonymous, RefusesWhatOnlyLooksLikeADigit)
{
    for (const std::uint32_t other : {0x65Fu, 0x66Au, 0xB2u, 0xBDu, 0x2160u, 0x2460u, 0x4E00u, 0xFF0Fu, 0xFF1Au,
                                      0xFF21u, 0x1D7CDu, 0x1D800u, 0x67u, 0x47u, 0x2Fu, 0x3Au, 0x40u, 0x60u})
        EXPECT_FALSE(is_pseudonymous(hex31 + utf8(other))) << std::hex << other;
}

TEST(Pseudonymous, RefusesOtherLengthsAndSpellings)
{
    expect_registered({"", "{}", "-", "urn:uuid:", hex31, hex + "0", hex31 + "g", "<wiped>", "anon", "URN:UUID:" + hex,
                       "Uuid:" + hex, "urn-uuid:" + hex, "-{" + hex + "}", "(" + hex + ")",
                       "0123456789abcdef{}0123456789abcdef",
                       "6ba7b810" + utf8(0x2010) + "9dad" + utf8(0x2010) + "11d1" + utf8(0x2010) + "80b4" +
                           utf8(0x2010) + "00c04fd430c8",
                       "\"" + hex + "\"", "g_118411223344556677889", "d_123456789012345678"});
}

TEST(Pseudonymous, CountsCharactersNotBytes)
{
    expect_registered({hex30 + utf8(0xFF11), hex.substr(0, 29) + utf8(0xFF11)});
    expect_pseudonymous({hex31 + utf8(0xFF11), hex31 + utf8(0x1D7CE)});
}

TEST(Floor, KnowsTheThreeKindsOfAccount)
{
    EXPECT_EQ(floor_of("anon"), -50_kudos);
    EXPECT_EQ(floor_of("6ba7b810-9dad-11d1-80b4-00c04fd430c8"), 14_kudos);
    EXPECT_EQ(floor_of("g_118411223344556677889"), 25_kudos);
}

TEST(Floor, TakesAnonOnlyExactlyAsItIsSpelled)
{
    for (const std::string_view oauth_id : {"ANON", "Anon", "anon ", " anon", "anonymous", "", "<wiped>"})
        EXPECT_EQ(floor_of(oauth_id), 25_kudos) << '"' << oauth_id << '"';
}

TEST(Floor, IsTheSameThroughTheDoorOfTheServerLayer)
{
    for (const std::string &oauth_id : {std::string("anon"), hex, std::string("somebody")}) {
        Cents floor = 0;
        test::expect_ok(account_floor(oauth_id, &floor));
        EXPECT_EQ(floor, floor_of(oauth_id)) << oauth_id;
    }
}

// uuid.UUID() on ASCII, in other words than those of core.
bool reads_as_uuid(std::string text)
{
    static const test::Pattern integer("[ \t\n\v\f\r]*[+]?(0[xX]_?)?[0-9a-fA-F](_?[0-9a-fA-F])*[ \t\n\v\f\r]*");
    const auto remove_each = [&](std::string_view part) {
        for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at))
            text.erase(at, part.size());
    };
    remove_each("urn:");
    remove_each("uuid:");
    text.erase(0, std::min(text.find_first_not_of("{}"), text.size()));
    text.erase(text.find_last_not_of("{}") + 1);
    remove_each("-");
    return text.size() == 32 && integer.matches(text);
}

// Breaks a uuid in a few places, mostly so that its length stays right.
std::string mutated(test::Random &random, bool ascii)
{
    static constexpr std::string_view pieces[] = {"-", "{",  "}",  "urn:", "uuid:", " ", "_",
                                                  "+", "0x", "0X", "\t",   "g",     "u"};
    std::string text;
    for (int i = 0; i < 32; i++)
        text += random.pick(std::string_view("0123456789abcdefABCDEF"));
    for (std::size_t changes = random.below(5); changes > 0; changes--) {
        const std::string_view piece = random.pick(pieces);
        const std::size_t at = random.one_in(2) ? random.below(text.size() + 1) : random.one_in(2) ? 0 : text.size();
        const bool keeps_length = random.one_in(2) && at + piece.size() <= text.size();
        text.replace(at, keeps_length ? piece.size() : 0, piece);
    }
    for (std::size_t changes = ascii ? 0 : random.below(6); changes > 0; changes--)
        text[random.below(text.size())] = static_cast<char>(random.bits());
    return text;
}

TEST(Pseudonymous, AgreesWithThePythonRuleOnMutatedUuids)
{
    test::Random random(4711);
    int accepted = 0;
    for (int i = 0; i < 20'000; i++) {
        const std::string text = mutated(random, true);
        const bool expected = reads_as_uuid(text);
        accepted += expected;
        EXPECT_EQ(is_pseudonymous(text), expected) << testing::PrintToString(text);
    }
    // Otherwise the mutations would show nothing.
    EXPECT_GT(accepted, 4'000);
    EXPECT_LT(accepted, 16'000);
}

TEST(Pseudonymous, ReadsRandomBytesAsTheSameInBracesAndBehindAPrefix)
{
    test::Random random(815);
    for (int i = 0; i < 20'000; i++) {
        std::string text = mutated(random, false);
        if (random.one_in(2))
            text.resize(random.below(60), '\xF0');
        EXPECT_EQ(is_pseudonymous("{urn:" + text), is_pseudonymous(text)) << testing::PrintToString(text);
    }
}

} // namespace
} // namespace kudos
