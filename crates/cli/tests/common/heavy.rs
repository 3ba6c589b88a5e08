//! C++ that costs the compiler memory.

/// Each kind of key instantiates a map, a sort and a recursion of templates of its own.
pub fn source(kinds: u32) -> String {
    let mut source = String::from(
        "#include <algorithm>\n#include <map>\n#include <string>\n#include <vector>\n\
         template <int K, int N> struct Chain { static int sum(int x) { return x % (N + K) + Chain<K, N - 1>::sum(x + N); } };\n\
         template <int K> struct Chain<K, 0> { static int sum(int x) { return x; } };\n",
    );
    for kind in 1..=kinds {
        source += &format!(
            "struct Key{kind} {{ int a; std::string b; bool operator<(const Key{kind} &o) const {{ return a < o.a || b < o.b; }} }};\n\
             int use{kind}(const std::vector<std::string> &words) {{\n\
             std::map<Key{kind}, std::vector<std::string>> map;\n\
             for (auto &word : words) map[Key{kind}{{(int)word.size() % {kind}, word}}].push_back(word);\n\
             int sum = Chain<{kind}, 60>::sum((int)words.size());\n\
             for (auto &entry : map) {{ std::sort(entry.second.begin(), entry.second.end(), [](auto &x, auto &y) {{ return x.size() * {kind} < y.size(); }}); sum += entry.second.size(); }}\n\
             return sum;\n}}\n"
        );
    }
    source
}
