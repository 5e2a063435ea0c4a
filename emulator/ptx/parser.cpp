// SPDX-License-Identifier: Apache-2.0
#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "emulator/ptx/lexer.h"
#include "emulator/ptx/syntax.h"

namespace flashjit::emulator {
namespace {

std::size_t bytes_of(std::string_view type) {
  static const std::map<std::string_view, std::size_t> kBytes = {
      {".b8", 1},  {".s8", 1},    {".u8", 1},   {".b16", 2},   {".s16", 2},  {".u16", 2},    {".f16", 2},
      {".b32", 4}, {".s32", 4},   {".u32", 4},  {".f32", 4},   {".b64", 8},  {".s64", 8},    {".u64", 8},
      {".f64", 8}, {".f16x2", 4}, {".pred", 0}, {".b128", 16}, {".bf16", 2}, {".bf16x2", 4},
  };
  const auto it = kBytes.find(type);
  return it == kBytes.end() ? SIZE_MAX : it->second;
}

const std::map<std::string_view, Special>& special_names() {
  static const std::map<std::string_view, Special> names = {
      {"%tid.x", Special::tid_x},
      {"%tid.y", Special::tid_y},
      {"%tid.z", Special::tid_z},
      {"%ntid.x", Special::ntid_x},
      {"%ntid.y", Special::ntid_y},
      {"%ntid.z", Special::ntid_z},
      {"%ctaid.x", Special::ctaid_x},
      {"%ctaid.y", Special::ctaid_y},
      {"%ctaid.z", Special::ctaid_z},
      {"%nctaid.x", Special::nctaid_x},
      {"%nctaid.y", Special::nctaid_y},
      {"%nctaid.z", Special::nctaid_z},
      {"%laneid", Special::laneid},
      {"%warpid", Special::warpid},
      {"%nwarpid", Special::nwarpid},
      {"%lanemask_eq", Special::lanemask_eq},
      {"%lanemask_lt", Special::lanemask_lt},
      {"%lanemask_le", Special::lanemask_le},
      {"%lanemask_gt", Special::lanemask_gt},
      {"%lanemask_ge", Special::lanemask_ge},
      {"%cluster_ctarank", Special::cluster_ctarank},
      {"%cluster_nctarank", Special::cluster_nctarank},
      {"%cluster_ctaid.x", Special::cluster_ctaid_x},
      {"%cluster_ctaid.y", Special::cluster_ctaid_y},
      {"%cluster_ctaid.z", Special::cluster_ctaid_z},
      {"%cluster_nctaid.x", Special::cluster_nctaid_x},
      {"%cluster_nctaid.y", Special::cluster_nctaid_y},
      {"%cluster_nctaid.z", Special::cluster_nctaid_z},
      {"%clusterid.x", Special::clusterid_x},
      {"%clusterid.y", Special::clusterid_y},
      {"%clusterid.z", Special::clusterid_z},
      {"%nclusterid.x", Special::nclusterid_x},
      {"%nclusterid.y", Special::nclusterid_y},
      {"%nclusterid.z", Special::nclusterid_z},
      {"%dynamic_smem_size", Special::dynamic_smem_size},
      {"%total_smem_size", Special::total_smem_size},
  };
  return names;
}

// What a text may ask for: more than kernels have, and little enough to be given to it.
constexpr int kMostNested = 256;      // braces and brackets in one another
constexpr Slot kMostSlots = 1 << 18;  // of registers, and of predicates
constexpr std::size_t kMostFiles = 1 << 16;
constexpr std::uint64_t kMostAlignment = 1 << 20;
// Of all variables of a space. Devices have less parameters and shared memory.
constexpr std::uint64_t kMostParameters = 1 << 16, kMostShared = 1 << 20, kMostGlobals = 1 << 28;

constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// "void HopperConsumer<Config>::step<false>(int, float&)" to "HopperConsumer::step": template arguments, parameters and
// the type of the result would hide the name in a message.
std::string plain_name(std::string_view text) {
  std::string plain;
  int depth = 0;
  for (const char c : text) {
    if (c == '<' || c == '(') ++depth;
    if (depth == 0) plain += c;
    if (c == '>' || c == ')') --depth;
    if (c == ')' && depth == 0) break;
  }
  return plain.substr(plain.rfind(' ') + 1);
}

std::string demangle(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                    std::free);
  return status == 0 ? plain_name(text.get()) : name;
}

// A variable of the module: where it lies in its space.
struct Symbol {
  Space space;
  std::uint64_t offset;
};

// What { } encloses: its registers, and its labels with the statements that name them before they are known.
struct Scope {
  struct Register {
    Slot slot;
    int bits;   // 0: a predicate
    int count;  // of a numbered family
  };
  struct Use {
    std::size_t statement, operand;
  };
  std::unordered_map<std::string, Register> registers;
  std::unordered_map<std::string, std::size_t> labels;
  std::unordered_map<std::string, std::vector<Use>> unresolved;
};

class Parser {
 public:
  explicit Parser(const std::string& ptx) : text_(ptx), lexer_(ptx) {}

  Module run() {
    find_strings();
    while (!lexer_.at_end()) parse_top();
    shorten_file_names();
    return std::move(module_);
  }

 private:
  // --- The module --------------------------------------------------------------------------------------------------

  void parse_top() {
    const std::string_view word = lexer_.dotted_word();
    if (word == ".version" || word == ".address_size") {
      lexer_.skip_line();
    } else if (word == ".target") {
      module_.target = std::string(lexer_.word());
      while (lexer_.take(',')) lexer_.word();
    } else if (word == ".file") {
      parse_file();
    } else if (word == ".section") {
      lexer_.until('{');
      lexer_.until('}');
    } else if (word == ".visible" || word == ".weak" || word == ".extern" || word == ".common") {
      extern_ = word == ".extern";
    } else if (word == ".global" || word == ".const") {
      parse_variable(Space::global);
    } else if (word == ".shared") {
      parse_variable(Space::shared);
    } else if (word == ".entry") {
      parse_kernel();
    } else {
      fail(fmt::format("'{}' at the top of a module is not supported", word));
    }
  }

  void parse_file() {
    const auto number = static_cast<std::size_t>(require_at_most(".file's number", kMostFiles));
    const std::string name = lexer_.quoted();
    while (lexer_.take(',')) lexer_.number();
    module_.files.resize(std::max(module_.files.size(), number + 1));
    module_.files[number] = name;
  }

  // The names that .loc directives use are bytes of .debug_str, behind all code: read first.
  void find_strings() {
    const std::size_t section = text_.rfind(".section\t.debug_str");
    if (section == std::string::npos) return;
    Lexer lexer(std::string_view(text_).substr(section));
    lexer.until('{');
    std::string* string = nullptr;
    while (!lexer.at_end() && lexer.peek() != '}') {
      const std::string_view word = lexer.dotted_word();
      if (lexer.take(':')) {
        string = &strings_[std::string(word)];
      } else if (word != ".b8" || !string) {
        return;
      } else {
        do {
          const auto byte = lexer.number();
          if (byte && byte->bits != 0) string->push_back(static_cast<char>(byte->bits));
        } while (lexer.take(','));
      }
    }
    for (auto& [label, name] : strings_) name = demangle(name);
  }

  // Compilers put their working directory in front: what all files share is left out.
  void shorten_file_names() {
    std::string shared;
    bool first = true;
    for (const std::string& file : module_.files) {
      if (file.empty()) continue;
      const std::string directory = file.substr(0, file.rfind('/') + 1);
      if (first) shared = directory;
      first = false;
      const auto end = std::mismatch(shared.begin(), shared.end(), directory.begin(), directory.end()).first;
      shared.erase(end, shared.end());
    }
    shared.resize(shared.rfind('/') + 1);
    for (std::string& file : module_.files)
      if (!file.empty()) file.erase(0, shared.size());
  }

  // After the space: [.align N] .type name[count][count] [= value | = {values}] {, ...} ;
  void parse_variable(Space space) {
    std::uint64_t alignment = 0;
    std::string_view type = lexer_.dotted_word();
    while (type == ".align" || type.starts_with(".attribute")) {
      if (type == ".align") alignment = require_alignment();
      type = lexer_.dotted_word();
    }
    const std::size_t element = bytes_of(type);
    if (element == SIZE_MAX || element == 0) fail(fmt::format("variable of type '{}' is not supported", type));
    do {
      const std::string name(lexer_.word());
      const std::uint64_t count = array_size();
      place_variable(space, name, element, count, std::max<std::uint64_t>(alignment, element));
    } while (lexer_.take(','));
    expect(';');
    extern_ = false;
  }

  // 1 for a scalar, 0 for [].
  std::uint64_t array_size() {
    std::uint64_t count = 1;
    while (lexer_.take('[')) {
      const std::uint64_t size = lexer_.peek() == ']' ? 0 : require_at_most("an array's size", kMostGlobals);
      count = within(kMostGlobals, count * size);
      expect(']');
    }
    return count;
  }

  // The end of a variable. It has not wrapped: sizes, counts, alignments and what lies before are all below 2^30.
  std::uint64_t within(std::uint64_t most, std::uint64_t end) const {
    if (end > most) fail(fmt::format("there is memory for {} bytes of such variables, these take {}", most, end));
    return end;
  }

  void place_variable(Space space, const std::string& name, std::size_t element, std::uint64_t count,
                      std::uint64_t alignment) {
    if (space == Space::shared) {
      // External shared memory comes behind all variables; its place is known when the kernel has been read.
      std::uint64_t& end = extern_ ? external_alignment_ : shared_end_;
      if (extern_) {
        end = std::max(end, alignment);
        symbols_[name] = {Space::shared, kExternal};
      } else {
        const std::uint64_t offset = align_up(end, alignment);
        end = within(kMostShared, offset + element * count);
        symbols_[name] = {Space::shared, offset};
      }
      return;
    }
    const std::uint64_t offset = align_up(module_.globals.size(), alignment);
    symbols_[name] = {Space::global, offset};
    module_.globals.resize(within(kMostGlobals, offset + element * count));
    if (lexer_.take('=')) parse_initial(offset, element, count);
  }

  void parse_initial(std::uint64_t offset, std::size_t element, std::uint64_t count) {
    const bool list = lexer_.take('{');
    std::uint64_t i = 0;
    do {
      if (list && lexer_.peek() == '}') break;
      const std::uint64_t bits = require_number();
      if (i == count) fail("a variable has more initial values than elements");
      std::memcpy(module_.globals.data() + offset + i++ * element, &bits, std::min<std::size_t>(element, 8));
    } while (list && lexer_.take(','));
    if (list) expect('}');
  }

  // --- A kernel ----------------------------------------------------------------------------------------------------

  void parse_kernel() {
    Kernel& kernel = module_.kernels.emplace_back();
    kernel_ = &kernel;
    kernel.name = std::string(lexer_.word());
    kernel.most_threads = {0, 0, 0};
    const auto outer_symbols = symbols_;
    const std::uint64_t outer_shared = shared_end_;
    symbol_slots_.clear();
    special_slots_.clear();
    location_ = -1;
    parse_parameters();
    parse_tuning();
    scopes_.clear();
    expect('{');
    parse_block();
    kernel.static_shared_bytes = shared_end_;
    place_external_symbols();
    symbols_ = outer_symbols;
    shared_end_ = outer_shared;
  }

  void parse_parameters() {
    if (!lexer_.take('(')) return;
    while (!lexer_.take(')')) {
      if (lexer_.dotted_word() != ".param") fail("a kernel's parameter must begin with .param");
      std::uint64_t alignment = 0;
      std::string_view type = lexer_.dotted_word();
      std::size_t element = SIZE_MAX;
      while (type.starts_with('.')) {
        if (type == ".align")
          alignment = std::max(alignment, require_alignment());
        else if (bytes_of(type) != SIZE_MAX)
          element = bytes_of(type);
        if (type == ".ptr") skip_pointer_attributes();
        type = lexer_.peek() == '.' ? lexer_.dotted_word() : std::string_view();
      }
      if (element == SIZE_MAX || element == 0) fail("a parameter's type is not supported");
      const std::string name(lexer_.word());
      const std::uint64_t count = array_size();
      const std::uint64_t offset = align_up(kernel_->parameter_bytes, std::max<std::uint64_t>(alignment, element));
      symbols_[name] = {Space::parameter, offset};
      kernel_->parameter_bytes = within(kMostParameters, offset + element * count);
      lexer_.take(',');
    }
  }

  // What a pointer points to says nothing of the parameter itself.
  void skip_pointer_attributes() {
    while (lexer_.peek() == '.') {
      if (lexer_.dotted_word() == ".align") require_number();
    }
  }

  void parse_tuning() {
    while (lexer_.peek() == '.') {
      const std::string_view directive = lexer_.dotted_word();
      if (directive == ".maxntid" || directive == ".reqntid") {
        kernel_->most_threads = parse_extent();
      } else if (directive == ".reqnctapercluster") {
        kernel_->cluster = parse_extent();
      } else if (directive == ".minnctapersm") {
        kernel_->least_blocks = require_unsigned();
      } else if (directive == ".maxnreg") {
        kernel_->most_registers = require_unsigned();
      } else if (directive == ".maxclusterrank" || directive == ".maxnctapersm") {
        require_number();
      } else if (directive == ".pragma") {
        lexer_.until(';');
      } else if (directive != ".explicitcluster" && directive != ".noreturn") {
        fail(fmt::format("'{}' of a kernel is not supported", directive));
      }
    }
  }

  Extent parse_extent() {
    Extent extent;
    extent.x = require_unsigned();
    if (lexer_.take(',')) extent.y = require_unsigned();
    if (lexer_.take(',')) extent.z = require_unsigned();
    return extent;
  }

  void place_external_symbols() {
    const std::uint64_t offset = align_up(shared_end_, std::max<std::uint64_t>(external_alignment_, 16));
    kernel_->static_shared_bytes = offset;
    for (SymbolAddress& symbol : kernel_->symbols)
      if (symbol.space == Space::shared && symbol.offset == kExternal) symbol.offset = offset;
  }

  // After {, to its }.
  void parse_block() {
    const Nesting nesting(*this);
    scopes_.emplace_back();
    while (!lexer_.take('}')) {
      if (lexer_.at_end()) fail("a block has no end");
      if (lexer_.take('{'))
        parse_block();
      else if (lexer_.peek() == '.')
        parse_directive();
      else if (!lexer_.take(';'))
        parse_statement();
    }
    close_scope();
  }

  // Labels that this scope does not have may be of the one around it.
  void close_scope() {
    Scope scope = std::move(scopes_.back());
    scopes_.pop_back();
    for (auto& [name, uses] : scope.unresolved) {
      const auto label = scope.labels.find(name);
      if (label != scope.labels.end()) {
        for (const Scope::Use& use : uses)
          kernel_->statements[use.statement].operands[use.operand].value = label->second;
      } else if (scopes_.empty()) {
        fail(fmt::format("'{}' is neither a register nor a label", name));
      } else {
        auto& outer = scopes_.back().unresolved[name];
        outer.insert(outer.end(), uses.begin(), uses.end());
      }
    }
  }

  void parse_directive() {
    const std::string_view directive = lexer_.dotted_word();
    if (directive == ".loc") {
      parse_location();
    } else if (directive == ".reg") {
      parse_registers();
    } else if (directive == ".pragma") {
      lexer_.until(';');
    } else if (directive == ".shared") {
      parse_variable(Space::shared);
    } else {
      fail(fmt::format("'{}' in a kernel is not supported", directive));
    }
  }

  // .loc file line column [, function_name label [+ offset], inlined_at file line column]
  void parse_location() {
    Location location;
    location.file = require_int();
    location.line = require_int();
    require_number();
    if (lexer_.take(',')) {
      lexer_.word();
      location.function = strings_[std::string(lexer_.word())];
      if (lexer_.take('+')) require_number();
      expect(',');
      lexer_.word();
      location.file_of_call = require_int();
      location.line_of_call = require_int();
      require_number();
    }
    location_ = static_cast<int>(module_.locations.size());
    module_.locations.push_back(std::move(location));
  }

  void parse_registers() {
    const std::string_view type = lexer_.dotted_word();
    const std::size_t bytes = bytes_of(type);
    if (bytes > 8) fail(fmt::format("registers of type '{}' are not supported", type));
    const int bits = static_cast<int>(bytes * 8);
    do {
      const std::string name(lexer_.word());
      int count = 1;
      const bool numbered = lexer_.take('<');
      if (numbered) {
        count = static_cast<int>(require_at_most("the number of registers", kMostSlots));
        expect('>');
      }
      const Slot first =
          bits == 0 ? add_slots(kernel_->predicates, count) : add_slots(kernel_->slots, count * (bits == 64 ? 2 : 1));
      const bool is_new =
          scopes_.back().registers.try_emplace(name, Scope::Register{first, bits, numbered ? count : 0}).second;
      if (!is_new) fail(fmt::format("register '{}' is declared twice", name));
    } while (lexer_.take(','));
    expect(';');
  }

  // The first of them.
  Slot add_slots(Slot& next, int count) const {
    if (count > kMostSlots - next) fail(fmt::format("a kernel must have at most {} registers of 32 bits", kMostSlots));
    return std::exchange(next, next + count);
  }

  // --- A statement -------------------------------------------------------------------------------------------------

  void parse_statement() {
    Statement statement;
    statement.ptx_line = lexer_.line();
    statement.location = location_;
    if (lexer_.take('@')) {
      statement.guard_negated = lexer_.take('!');
      const std::string name(lexer_.word());
      const auto guard = find_register(name);
      if (!guard || guard->bits != 0) fail(fmt::format("guard '{}' is not a predicate", name));
      statement.guard = guard->slot;
    }
    const std::string_view opcode = lexer_.dotted_word();
    if (opcode.empty()) fail(fmt::format("'{}' begins no statement", lexer_.peek()));
    if (statement.guard == kNoSlot && lexer_.take(':')) {
      const bool is_new = scopes_.back().labels.try_emplace(std::string(opcode), kernel_->statements.size()).second;
      if (!is_new) fail(fmt::format("label '{}' is there twice", opcode));
      return;
    }
    statement.opcode = std::string(opcode);
    kernel_->statements.push_back(std::move(statement));
    while (!lexer_.take(';')) {
      // parse_operand may name a label, which is resolved by the statement's number.
      Operand operand = parse_operand(kernel_->statements.back().operands.size());
      kernel_->statements.back().operands.push_back(std::move(operand));
      if (!lexer_.take(',') && lexer_.peek() != ';') fail(fmt::format("'{}' after an operand", lexer_.peek()));
    }
  }

  Operand parse_operand(std::size_t index) {
    const Nesting nesting(*this);
    if (lexer_.take('{')) return parse_vector(index);
    if (lexer_.take('[')) return parse_address(index);
    if (const auto number = lexer_.number()) {
      Operand operand;
      operand.kind = OperandKind::immediate;
      operand.value = number->bits;
      return operand;
    }
    const bool negated = lexer_.take('!');
    Operand operand = parse_name(index);
    operand.negated = negated;
    if (!lexer_.take('|')) return operand;
    Operand pair;
    pair.kind = OperandKind::vector;
    pair.elements = {operand, parse_name(index)};
    return pair;
  }

  Operand parse_vector(std::size_t index) {
    Operand vector;
    vector.kind = OperandKind::vector;
    do vector.elements.push_back(parse_operand(index));
    while (lexer_.take(','));
    expect('}');
    return vector;
  }

  // [base], [base+offset], [base+-offset], [offset], [base, {coordinates}]
  Operand parse_address(std::size_t index) {
    Operand address;
    address.kind = OperandKind::address;
    address.bits = 64;
    if (const auto number = lexer_.number()) {
      address.value = number->bits;
    } else {
      const Operand base = parse_name(index);
      if (base.kind != OperandKind::reg) fail(fmt::format("'{}' cannot be an address", base.text));
      address.slot = base.slot;
      address.bits = base.bits;
      address.text = base.text;
      if (lexer_.take('+'))
        address.value = require_number();
      else if (const auto offset = lexer_.number())
        address.value = offset->bits;
    }
    if (lexer_.take(',')) address.elements = parse_operand(index).elements;
    expect(']');
    return address;
  }

  Operand parse_name(std::size_t index) {
    Operand operand;
    // Of the names only special registers have dots.
    const std::string name(lexer_.peek() == '%' ? lexer_.dotted_word() : lexer_.word());
    operand.text = name;
    if (name == "_") return operand;
    if (const auto reg = find_register(name)) {
      operand.kind = reg->bits == 0 ? OperandKind::predicate : OperandKind::reg;
      operand.slot = reg->slot;
      operand.bits = reg->bits;
    } else if (const auto special = special_names().find(name); special != special_names().end()) {
      operand.kind = OperandKind::reg;
      operand.slot = slot_of(special->second);
      operand.bits = 32;
    } else if (const auto symbol = symbols_.find(name); symbol != symbols_.end()) {
      operand.kind = OperandKind::reg;
      std::uint64_t offset = 0;
      const Lexer::Mark mark = lexer_.mark();
      if (lexer_.take('+')) {
        if (const auto number = lexer_.number())
          offset = number->bits;
        else
          lexer_.rewind(mark);
      }
      operand.slot = slot_of(name, symbol->second, offset);
      operand.bits = 64;
    } else if (name.empty() || name.front() == '%') {
      fail(fmt::format("register '{}' is not known", name));
    } else {
      operand.kind = OperandKind::label;
      scopes_.back().unresolved[name].push_back({kernel_->statements.size() - 1, index});
    }
    return operand;
  }

  Slot slot_of(Special special) {
    const auto [it, is_new] = special_slots_.try_emplace(special, kernel_->slots);
    if (is_new) kernel_->specials.push_back({special, add_slots(kernel_->slots, 1)});
    return it->second;
  }

  // Addresses are known when a block starts: a register holds them.
  Slot slot_of(const std::string& name, const Symbol& symbol, std::uint64_t offset) {
    const auto [it, is_new] = symbol_slots_.try_emplace({name, offset}, kernel_->slots);
    if (is_new) {
      const std::uint64_t place = symbol.offset == kExternal ? kExternal : symbol.offset + offset;
      if (symbol.offset == kExternal && offset != 0) fail("an offset to external shared memory is not supported");
      const Slot first = add_slots(kernel_->slots, 3);
      kernel_->symbols.push_back({symbol.space, place, first, first + 2});
    }
    return it->second;
  }

  struct FoundRegister {
    Slot slot;
    int bits;
  };
  std::optional<FoundRegister> find_register(const std::string& name) const {
    const std::size_t digits = name.find_last_not_of("0123456789") + 1;
    const std::string family = name.substr(0, digits);
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto it = scope->registers.find(name); it != scope->registers.end() && it->second.count == 0)
        return FoundRegister{it->second.slot, it->second.bits};
      if (digits == name.size()) continue;
      if (const auto it = scope->registers.find(family); it != scope->registers.end()) {
        int number = 0;
        const auto [end, error] = std::from_chars(name.data() + digits, name.data() + name.size(), number);
        if (error != std::errc() || number >= it->second.count) continue;
        return FoundRegister{it->second.slot + number * (it->second.bits == 64 ? 2 : 1), it->second.bits};
      }
    }
    return {};
  }

  // --- Small things ------------------------------------------------------------------------------------------------

  std::uint64_t require_number() {
    const auto number = lexer_.number();
    if (!number) fail(fmt::format("a number must stand before '{}'", lexer_.peek()));
    return number->bits;
  }
  std::uint64_t require_at_most(const char* what, std::uint64_t most) {
    const std::uint64_t number = require_number();
    if (number > most) fail(fmt::format("{} must be at most {}, was {}", what, most, number));
    return number;
  }
  int require_int() { return static_cast<int>(require_at_most("a line or file", INT_MAX)); }
  unsigned require_unsigned() { return static_cast<unsigned>(require_at_most("a limit of a kernel", UINT_MAX)); }
  std::uint64_t require_alignment() {
    const std::uint64_t alignment = require_at_most("an alignment", kMostAlignment);
    if (!std::has_single_bit(alignment)) fail(fmt::format("an alignment must be a power of two, was {}", alignment));
    return alignment;
  }
  void expect(char c) {
    if (!lexer_.take(c)) fail(fmt::format("'{}' must stand before '{}'", c, lexer_.peek()));
  }
  [[noreturn]] void fail(const std::string& why) const {
    const Place place = place_of(module_, lexer_.line(), location_);
    throw ParseError(fmt::format("PTX line {}: {}", place.ptx_line, why), place);
  }

  // A recursion of the parser, which takes stack.
  class Nesting {
   public:
    explicit Nesting(Parser& parser) : depth_(parser.depth_) {
      if (depth_ == kMostNested) parser.fail(fmt::format("more than {} braces are open", kMostNested));
      ++depth_;
    }
    ~Nesting() { --depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    int& depth_;
  };

  static constexpr std::uint64_t kExternal = UINT64_MAX;

  const std::string& text_;
  Lexer lexer_;
  Module module_;
  Kernel* kernel_ = nullptr;
  bool extern_ = false;
  std::uint64_t shared_end_ = 0, external_alignment_ = 0;
  std::unordered_map<std::string, std::string> strings_;
  std::unordered_map<std::string, Symbol> symbols_;
  std::map<std::pair<std::string, std::uint64_t>, Slot> symbol_slots_;
  std::map<Special, Slot> special_slots_;
  std::vector<Scope> scopes_;
  int location_ = -1;
  int depth_ = 0;
};

}  // namespace

Module parse(const std::string& ptx) { return Parser(ptx).run(); }

Place place_of(const Module& module, int ptx_line, int location) {
  Place place;
  place.ptx_line = ptx_line;
  if (location < 0) return place;
  const auto file = [&](int number) {
    return static_cast<std::size_t>(number) < module.files.size() ? module.files[static_cast<std::size_t>(number)]
                                                                  : std::string();
  };
  const Location& at = module.locations[static_cast<std::size_t>(location)];
  place.file = file(at.file);
  place.line = at.line;
  place.function = at.function;
  // The directive names its caller only; that one's directive stands somewhere before.
  const Location* inner = &at;
  for (int i = location; inner->file_of_call != 0;) {
    std::string call = fmt::format("{}:{}", file(inner->file_of_call), inner->line_of_call);
    const Location* caller = nullptr;
    while (--i >= 0 && !caller) {
      const Location& before = module.locations[static_cast<std::size_t>(i)];
      if (before.file == inner->file_of_call && before.line == inner->line_of_call) caller = &before;
    }
    if (caller && !caller->function.empty()) call += " in " + caller->function;
    place.inlined_at.push_back(std::move(call));
    if (!caller) break;
    inner = caller;
  }
  return place;
}

}  // namespace flashjit::emulator
