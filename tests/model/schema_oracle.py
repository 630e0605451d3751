"""What the grammar of a JSON schema lets through is JSON that python3-jsonschema calls valid, and valid instances get
through as json.dumps() writes them.

usage: schema_oracle.py GRAMMAR_WALK"""
import datetime
import fractions
import ipaddress
import itertools
import json
import operator
import random
import subprocess
import sys
import uuid

try:
    import jsonschema
except ImportError:
    print("python3-jsonschema is not installed")
    sys.exit(77)

WALKS = 12

PERSON = {  # as pydantic writes a model
    "$defs": {
        "Address": {
            "properties": {"street": {"title": "Street", "type": "string"},
                           "zip": {"anyOf": [{"type": "string", "pattern": "^[0-9]{5}$"}, {"type": "null"}], "default": None}},
            "required": ["street"], "title": "Address", "type": "object"},
        "Color": {"enum": ["red", "green", "blue"], "title": "Color", "type": "string"},
        "Cat": {"properties": {"kind": {"const": "cat", "title": "Kind", "type": "string"},
                               "lives": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["kind", "lives"], "type": "object"},
        "Dog": {"properties": {"kind": {"const": "dog", "type": "string"}, "good": {"type": "boolean"}}, "required": ["kind"], "type": "object"},
    },
    "properties": {
        "name": {"title": "Name", "type": "string", "minLength": 1, "maxLength": 20},
        "age": {"anyOf": [{"type": "integer", "minimum": 0, "exclusiveMaximum": 150}, {"type": "null"}], "title": "Age"},
        "addresses": {"items": {"$ref": "#/$defs/Address"}, "title": "Addresses", "type": "array", "default": []},
        "color": {"allOf": [{"$ref": "#/$defs/Color"}], "default": "red", "description": "what one likes"},
        "pet": {"discriminator": {"mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}, "propertyName": "kind"},
                "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]},
        "scores": {"additionalProperties": {"type": "number"}, "type": "object"},
        "born": {"type": "string", "format": "date"},
        "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
    },
    "required": ["name", "age", "pet"], "title": "Person", "type": "object"}

STRICT = {  # of a function, as OpenAI's strict mode wants it
    "type": "object", "additionalProperties": False, "required": ["location", "unit"],
    "properties": {"location": {"type": "string", "description": "a city"},
                   "unit": {"type": ["string", "null"], "enum": ["C", "F", None]}}}

CALLS = {  # of gateways, for tool_choice "required"
    "type": "array", "minItems": 1,
    "items": {"type": "object", "anyOf": [
        {"properties": {"name": {"type": "string", "enum": ["weather"]}, "parameters": STRICT}, "required": ["name", "parameters"]},
        {"properties": {"name": {"type": "string", "enum": ["now"]}, "parameters": {"type": "object", "properties": {}}},
         "required": ["name", "parameters"]}]}}

TREE = {"type": "object", "properties": {"value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["value"], "additionalProperties": False}

# schema, valid instances, texts that are not valid
CASES = [
    (True, [1, -2.5, 1e22, "x", None, True, [], {}, {"a": [1, {"b": {}}, "\u20ac\n"]}, "\"\\/\x00\U0001f642"], ["", "01", "[1,]", "{a:1}", "nul", "'x'"]),
    ({}, [[1, [2, [3]]], {"": {"": ""}}], [" 1", "1 ", "\"\n\""]),
    (PERSON, [{"name": "Ann", "age": 7, "pet": {"kind": "cat", "lives": 9}},
              {"name": "\u00e9\U0001f642", "age": None, "addresses": [{"street": "a"}, {"street": "b", "zip": "12345"}, {"street": "c", "zip": None}],
               "color": "blue", "pet": {"kind": "dog", "good": True}, "scores": {"x": 1.5, "y": 2}, "born": "1999-12-31", "pair": [1, "b"]}],
     ['{"name":"","age":1,"pet":{"kind":"dog"}}', '{"name":"a","pet":{"kind":"dog"}}', '{"name":"a","age":150,"pet":{"kind":"dog"}}']),
    (STRICT, [{"location": "Rome", "unit": None}, {"location": "", "unit": "C"}], ['{"location":"x"}', '{"location":"x","unit":"K"}']),
    (CALLS, [[{"name": "weather", "parameters": {"location": "x", "unit": "F"}}],
             [{"name": "now", "parameters": {}}, {"name": "weather", "parameters": {"location": "x", "unit": None}}]],
     ["[]", '[{"name":"now"}]', '[{"name":"then","parameters":{}}]']),
    (TREE, [{"value": 1}, {"value": 1, "children": [{"value": -2, "children": []}, {"value": 3}]}], ['{"children":[]}', '{"value":1,"x":2}']),
    ({"type": "object"}, [{}, {"a": 1, "b": [None]}], ["[]", "{} "]),
    ({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
     [{}, {"a": 1}, {"b": "x"}, {"a": 1, "b": "x", "ab": "y", "": "z", "\u00e9\"\\": "u"}], ['{"a":"x"}', '{"b":1}', '{"\\u0061":"x"}']),
    ({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}}, [{}, {"a": 1}, {"b": 1}, {"c": 1}, {"a": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}],
     ['{"a":1,}', '{,"b":1}', '{"a":1 "b":1}']),
    ({"type": "object", "required": ["x"], "minProperties": 1}, [{"x": 1}, {"x": None, "y": 2}], ["{}", '{"y":1}']),
    ({"additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 3}, [{"a": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}],
     ["{}", '{"a":1,"b":2,"c":3,"d":4}']),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1}, [{"a": 1}, {"b": 1}], ["{}"]),
    ({"type": "object", "properties": {"a": False}, "minProperties": 1}, [{"b": 1}], ["{}", '{"a":1}']),
    ({"type": "object", "properties": {"b": {}}, "minProperties": 1, "maxProperties": 2, "not": {"required": ["b"]}}, [{"c": 1}, {"a": 1, "c": 2}], ["{}", '{"b":1}']),
    ({"properties": {"a": True}, "patternProperties": {}, "maxProperties": 3, "additionalProperties": True},
     [{}, {"a": 1, "b": 2, "c": 3}, {"b": 1, "c": 2}], ['{"b":1,"c":2,"d":3,"e":4}']),
    ({"type": "object", "patternProperties": {"^[a-z]{1,3}$": {"type": "integer"}}}, [{}, {"abc": 1, "x": -2}], ['{"abcd":1}', '{"a":"x"}', '{"A":null}']),
    ({"additionalProperties": {"type": "integer"}, "propertyNames": {"$ref": "#/$defs/Color"}, "$defs": PERSON["$defs"]},  # as pydantic writes dict[Color, int]
     [{}, {"red": 1, "blue": 2}, {"green": 3}], ['{"pink":1}', '{"red":"x"}']),
    ({"type": "object", "propertyNames": {"type": "string", "pattern": "^x-", "maxLength": 5}, "additionalProperties": {"type": "boolean"}},  # as zod does
     [{}, {"x-": True, "x-abc": False}], ['{"x-abcd":true}', '{"y":true}', '{"x-":1}']),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}, [[True, False], [True, True, True]], ["[]", "[true]", "[true,true,true,true]"]),
    ({"prefixItems": [{"const": 1}, {"const": 2}], "items": {"type": "null"}}, [[], [1], [1, 2], [1, 2, None], [1, 2, None, None]], ["[2]", "[1,null]"]),
    ({"prefixItems": [{"const": 1}], "items": False, "minItems": 1}, [[1]], ["[]", "[1,1]"]),
    ({"prefixItems": [{"const": 1}], "minItems": 2, "maxItems": 3}, [[1, "x"], [1, None, {}]], ["[1]", "[1,1,1,1]"]),
    ({"type": "array", "maxItems": 1, "uniqueItems": True}, [[], [1]], ["[1,2]"]),
    ({"type": "array", "items": {"$ref": "#/$defs/Color"}, "uniqueItems": True, "$defs": PERSON["$defs"]},  # as pydantic writes set[Color]
     [[], ["red"], ["blue", "red", "green"]], ['["red","red"]', '["pink"]']),
    ({"items": {"enum": [2**53, 2**53 + 1]}, "uniqueItems": True}, [[2**53 + 1, 2**53]], ["[9007199254740993,9007199254740993]"]),
    ({"type": "object", "required": list("abcd"), "properties": {  # whose digits are few
        name: {"type": "integer", "multipleOf": of, "minimum": 0, "maximum": 100000} for name, of in zip("abcd", (1000, 999, 998, 997))}},
     [{"a": 1000, "b": 99900, "c": 0, "d": 997}], ['{"a":1,"b":0,"c":0,"d":0}']),
    ({"items": {"enum": [[1], [1.0], 2, {"a": 1, "b": []}, {"b": [], "a": 1}]}, "uniqueItems": True}, [[[1], {"a": 1, "b": []}, 2], [{"b": [], "a": 1}, [1.0]]],
     ["[[1],[1.0]]", '[{"a":1,"b":[]},{"b":[],"a":1}]']),
    ({"items": {"enum": list(range(64))}, "uniqueItems": True, "maxItems": 2}, [[63, 0], [0, 63]], ["[7,7]", "[1,2,3]"]),
    ({"type": "array", "items": False}, [[]], ["[1]"]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "\u00e9\U0001f642", "\n\"\\"], ['"a"', '"abcd"', '"\\ud83d\\ude42"']),
    ({"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"}, ["AB-1"], ['"AB-"', '"xAB-1"']),
    ({"type": "string", "pattern": "b+"}, ["b", "abba"], ['"a"']),
    ({"pattern": "^a.\"$"}, ["a\u00e9\""], ['"a\\""']),
    ({"type": ["integer", "null"]}, [1, None, -9], ["1.5", "true"]),
    ({"type": "integer", "minimum": -3, "exclusiveMaximum": 4}, list(range(-3, 4)), ["-4", "4", "-0", "03", "1.0"]),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 1.5}, [0.1, 1, 1.5, 0.0012, 1.0], ["0", "0.0", "1.51", "-1"]),
    ({"type": "number", "minimum": -0.5, "maximum": -0.25}, [-0.5, -0.25, -0.3], ["-0.51", "-0.24", "0.3", "-0.2"]),
    ({"type": "number", "multipleOf": 1}, [3, -4], ["3.5"]),
    ({"enum": ["a", 1, 1.5, None, True, [1, {"x": []}], "\u20ac\"\n"]}, ["a", 1, 1.5, None, True, [1, {"x": []}], "\u20ac\"\n"], ['"b"', "2", "false"]),
    ({"type": "integer", "enum": [1, 2.0, "x", 2.5]}, [1, 2], ["2.5", '"x"']),
    ({"const": {"a": [1, 2], "b": {}}}, [{"a": [1, 2], "b": {}}], ['{"a":[1,2]}']),
    ({"enum": [[], ["a"], ["a", "a"], ["b", 1], 5], "type": ["array", "integer"], "items": {"type": "string"}, "uniqueItems": True}, [[], ["a"], 5],
     ['["a","a"]', '["b",1]']),
    ({"enum": [{"k": "a", "n": 1}, {"n": 0, "k": "a"}, {"k": "b"}, {"k": "a", "xx": 1}, {"k": "a", "n": 2, "x": True}], "required": ["k"],
      "properties": {"k": {"const": "a"}, "n": {"minimum": 1}}, "patternProperties": {"^x": {"type": "boolean"}}},
     [{"k": "a", "n": 1}, {"k": "a", "n": 2, "x": True}], ['{"n":0,"k":"a"}', '{"k":"b"}', '{"k":"a","xx":1}', '{"n":1,"k":"a"}']),
    ({"items": {"properties": {"a": {"required": ["b"], "propertyNames": {"enum": ["a", "c"]}}}}}, [[], [{}]], ['[{"a":{}}]', '[{"a":{"b":1}}]']),
    ({"additionalProperties": {"type": "integer"}, "propertyNames": {"enum": ["a", "ab", "b", "bc"], "maxLength": 2, "pattern": "^b|c$"}},
     [{}, {"b": 1, "bc": 2}], ['{"a":1}', '{"ab":1}']),
    ({"const": 0.1}, [0.1], ["0.2"]),
    ({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]}, [5, "", "x"], ['"xy"', "null"]),
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
     [{"a": 1}, {"b": 1}, {"a": 1, "b": 2}], ["{}"]),
    ({"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {"type": "null"}, "a": {"minimum": 5}}}]},
     [{"a": 5}, {"a": 7, "b": None}], ['{"a":4}', '{"b":null}']),
    ({"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}, {"properties": {"a": {}, "b": {}}}]},
     [{"a": 5}], ['{"a":4,"b":1}', '{"b":null}']),
    ({"allOf": [{"type": ["integer", "string"]}, {"type": "number"}, {"minimum": 2}, {"minimum": 3}]}, [3], ["2", '"x"']),
    ({"$ref": "#/definitions/a", "minimum": 3, "definitions": {"a": {"type": "integer", "maximum": 4}}}, [3, 4], ["2", "5"]),
    ({"$ref": "#/$defs/a~1b%20c~0", "$defs": {"a/b c~": {"$ref": "#/$defs/list/prefixItems/1"}, "list": {"prefixItems": [True, {"const": 7}]}}}, [7], ["8"]),
    ({"properties": {"a": False, "b": True}}, [{}, {"b": 1}], ['{"a":1}']),
    ({"anyOf": [False, {"const": 1}]}, [1], ["2"]),
    ({"minLength": 2, "minimum": 10}, ["ab", 10], ['"a"', "9", "null"]),
    ({"type": "string", "not": {"enum": ["a", "bc"]}}, ["", "b", "ab", "bcd"], ['"a"', '"bc"', "1"]),
    ({"type": ["string", "boolean", "null"], "not": {"anyOf": [{"const": True}, {"const": "x"}, {"type": "null"}]}}, [False, "", "xx"], ["true", '"x"', "null"]),
    ({"enum": [1, 2, "x", None], "not": {"enum": [1.0, "x"]}}, [2, None], ["1", '"x"']),
    ({"type": "number", "not": {"enum": [0, 2.5, -3, "x"]}}, [-4, -2.99, 0.5, 2, 2.25, 25, 1e5], ["0", "0.0", "2.5", "-3", "-3.0"]),
    ({"type": "integer", "minimum": 1, "allOf": [{"not": {"const": 3}}, {"not": {"enum": [2, 1.0]}}]}, [4, 10, 31], ["0", "1", "2", "3"]),
    ({"type": "object", "properties": {"v": {"type": "integer"}}, "required": ["v"], "if": {"properties": {"v": {"const": 1}}},
      "then": {"properties": {"a": {"type": "string"}}, "required": ["a"]}, "else": {"properties": {"b": {"type": "null"}}, "required": ["b"]}},
     [{"v": 1, "a": "x"}, {"v": 2, "b": None}, {"v": -11, "b": None}], ['{"v":1}', '{"v":1,"b":null}', '{"v":2,"a":"x"}']),
    ({"enum": ["a", "b", "c"], "allOf": [{"not": {"const": "a"}}, {"not": {"const": "b"}}]}, ["c"], ['"a"', '"b"']),
    ({"not": {"not": {"type": "integer", "minimum": 3}}}, [3, 4], ["2", '"x"']),
    ({"type": "integer", "not": {"minimum": 3, "maximum": 5}}, [-1, 2, 6, 7], ["3", "5"]),
    ({"not": {"type": ["object", "array", "string", "number"]}}, [True, None], ["1", "{}"]),
    ({"type": "string", "not": {"pattern": "a+b"}}, ["", "ba", "aa"], ['"ab"', '"xaaby"']),
    ({"type": "string", "not": {"pattern": "^x-"}, "minLength": 2}, ["ax-", "xx"], ['"x-a"', '"a"']),
    ({"type": "string", "not": {"maxLength": 2}}, ["abc", "abcd"], ['"ab"']),
    ({"type": "array", "items": {"const": 0}, "not": {"minItems": 2}}, [[], [0]], ["[0,0]"]),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "not": {"required": ["a", "b"]}}, [{}, {"a": 1}, {"b": 1}], ['{"a":1,"b":2}']),
    ({"type": "object", "not": {"required": ["a"]}}, [{}, {"b": 1, "aa": 2}], ['{"a":1}', '{"b":1,"a":1}']),
    ({"type": "object", "properties": {"k": {"enum": ["a", "b"]}, "n": {"type": "null"}}, "required": ["k"],
      "not": {"properties": {"k": {"const": "a"}}, "required": ["n"]}}, [{"k": "a"}, {"k": "b"}, {"k": "b", "n": None}], ['{"k":"a","n":null}']),
    ({"$ref": "#/$defs/a", "not": {"$ref": "#/$defs/b"}, "$defs": {"a": {"enum": [1, 2, 3]}, "b": {"enum": [2, 4]}}}, [1, 3], ["2", "4"]),
    ({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "dependentRequired": {"a": ["b"], "b": ["c"]}},
     [{}, {"c": 1}, {"b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}], ['{"a":1}', '{"b":1}', '{"a":1,"b":1}', '{"a":1,"c":1}']),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, [{}, {"b": 1}, {"x": 1}, {"a": 1, "b": 2}], ['{"a":1}', '{"x":2,"a":1}']),
    ({"type": "object", "properties": {"a": {}, "b": {"type": "integer"}}, "additionalProperties": False, "dependentRequired": {"a": ["z"], "y": ["b"]}},
     [{}, {"b": 1}], ['{"a":1}', '{"a":1,"z":1}']),
    ({"type": "object", "properties": {"a": {}, "b": {"type": "integer"}}, "dependentSchemas": {"a": {"properties": {"b": {"minimum": 3}}}}},
     [{"b": 1}, {"a": 1}, {"a": 1, "b": 3}], ['{"a":1,"b":2}']),
    ({"type": "object", "properties": {"kind": {"enum": ["x", "y", "z"]}, "n": {"type": "integer"}, "m": {"type": "null"}}, "required": ["kind"],
      "if": {"properties": {"kind": {"const": "x"}}}, "then": {"required": ["n"]}, "else": {"required": ["m"]}},
     [{"kind": "x", "n": 1}, {"kind": "y", "m": None}, {"kind": "z", "n": 1, "m": None}], ['{"kind":"x"}', '{"kind":"y"}', '{"kind":"x","m":null}']),
    ({"type": "integer", "if": {"minimum": 10}, "then": {"multipleOf": 5}}, [3, 10, 15], ["11", "14"]),
    ({"type": "integer", "if": {"minimum": 10}}, [3, 11], ['"x"']),
    ({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
      "allOf": [{"anyOf": [{"required": ["b"]}, {"required": ["c"]}]}]}, [{"b": 1}, {"a": 1, "c": 1}], ["{}", '{"a":1}', '{"c":1}']),
    ({"anyOf": [{"required": ["a"], "properties": {}, "additionalProperties": False}, {"const": 1}]}, [1], ["{}", '{"a":1}']),
    ({"type": "object", "properties": {"kind": {"enum": ["a", "b", "c"]}, "x": {}, "y": {}}, "required": ["kind"], "allOf": [
        {"if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["x"]}},
        {"if": {"properties": {"kind": {"const": "b"}}, "required": ["kind"]}, "then": {"required": ["y"]}},
        {"if": {"properties": {"kind": {"enum": ["b", "c"]}}}, "then": {"properties": {"x": {"type": "null"}}}}]},
     [{"kind": "a", "x": 1}, {"kind": "b", "y": 1}, {"kind": "b", "x": None, "y": 1}, {"kind": "c"}],
     ['{"kind":"a"}', '{"kind":"a","y":1}', '{"kind":"b"}', '{"kind":"b","x":1,"y":1}', '{"kind":"c","x":1}', '{}']),
    ({"properties": {"kind": {}}, "allOf": [{"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": {"required": [kind]}}
                                            for kind in "abcdefghijkl"]},
     [{}, {"kind": 1}, {"kind": "l", "l": 1}], ['{"kind":"a"}', '{"kind":"a","b":1}']),
    ({"type": "object", "properties": {"kind": {}, "n": {}}, "required": ["kind"], "anyOf": [
        {"not": {"properties": {"kind": {"const": "a"}}}}, {"properties": {"n": {"type": "integer"}}, "required": ["n"]}],
      "allOf": [{"anyOf": [{"properties": {"kind": {"const": "a"}}}, {"properties": {"kind": {"const": "b"}}}]}]},
     [{"kind": "a", "n": 1}, {"kind": "b"}], ['{"kind":"a"}', '{"kind":"c"}', '{"kind":"a","n":"x"}']),
    ({"anyOf": [{"const": 1}, {"const": "x"}], "allOf": [{"const": 1.0}]}, [1.0], ['"x"', "2"]),
    ({"anyOf": [{"type": "object", "required": ["a"], "properties": {"a": False}}, {"type": "string", "format": "date", "minLength": 9, "maxLength": 8},
                {"const": 3}]}, [3], ["{}", '{"a":1}']),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "not": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}},
     [{}, {"a": 1, "b": 1}], ['{"a":1}', '{"b":1}']),
    ({"type": ["integer", "string"], "if": {"oneOf": [{"minimum": 2}, {"maximum": 3}]}, "then": {"type": "string"}},
     [2, 3], ["1", "4"]),
    ({"type": "string", "not": {"pattern": "^a|b$|(c|d)e"}}, ["", "ba", "bc", "ca"], ['"a"', '"ab"', '"xb"', '"xcey"', '"de"']),
    ({"properties": {"a": {"$id": "/properties/a", "type": "integer"}, "b": {"$ref": "#/properties/a"}}}, [{"a": 1, "b": 2}], ['{"a":"x"}', '{"b":"x"}']),
    ({"properties": {"ab": {"minimum": 3}, "z": {}}, "patternProperties": {"^a": {"type": "integer"}, "b$": {"maximum": 9}}},
     [{}, {"ab": 3, "z": "x", "a": 1}, {"\u00e9b": 9}], ['{"ab":2}', '{"ab":10}', '{"a":"x"}', '{"b":10}', '{"ab":3.5}']),
    ({"patternProperties": {"^x-": {"type": "boolean"}}, "properties": {"x": {}}, "required": ["x", "x-y"], "additionalProperties": {"type": "null"}},
     [{"x": 1, "x-y": True}, {"x": 1, "x-y": True, "x-z": False, "a\"": None}], ['{"x":1}', '{"x":1,"x-y":null}', '{"x":1,"x-y":true,"y":1}']),
    ({"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "[|b]|c"}, {"pattern": "d$"}]}, ["abd", "acxd", "a|d"], ['"ad"', '"abdx"', '"bd"']),
    ({"title": "x", "format": "int64", "type": "integer", "x-order": 1, "examples": [1]}, [1], ['"1"']),
]


def is_time(text):
    datetime.datetime.fromisoformat("2000-01-01T" + text.replace("Z", "+00:00"))


FORMATS = {
    "date": datetime.date.fromisoformat,
    "time": is_time,
    "date-time": lambda t: datetime.datetime.fromisoformat(t.replace("Z", "+00:00")),
    "uuid": uuid.UUID,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "email": lambda t: None,
    "hostname": lambda t: None,
    "uri": lambda t: None,
    "duration": lambda t: None,
}
FORMAT_INSTANCES = {
    "date": ["2024-02-28", "1999-12-31", "2024-02-29", "2000-02-29"],
    "time": ["23:59:59Z", "01:02:03.25+05:30", "01:02:03.123456789Z"],
    "date-time": ["2024-06-30T12:00:00Z", "2024-06-30T12:00:00.123456-07:00"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "ipv4": ["0.0.0.0", "255.255.255.255", "10.1.2.3"],
    "ipv6": ["::", "::1", "1::", "2001:db8::ff00:42:8329", "1:2:3:4:5:6:7:8", "1::8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8"],
    "email": ["a@b.cd", "first.last+tag@mail.example.com", "o'brien@x.org", "a.b.c.d@a-very-long-label.co.uk", "a" * 64 + "@" + "b" * 63 + ".org",
              "x@mail.eu-west-1.ec2-1-2-3-4.dept.example.com"],
    "hostname": ["localhost", "a-b.example.com", "xn-" + "a" * 31 + ".com", "a-b-c-d.e.f.org", "-".join(4 * ["a" * 15]) + ".org", "my-host", "db.my-ns.svc.cluster.local", "ec2-3-15-20-100.us-east-2.compute.amazonaws.com"],
    "uri": ["https://example.com/a//b?x=1#f", "http://a?#", "http://localhost:8080", "s3://bucket/key%20x", "http://192.168.0.1:11434/a%e4(b)",
            "http://my-host:5050", "https://b.s3.us-west-2.amazonaws.com/k?next=/a/b?c#/route", "file:///etc/a.txt", "urn:isbn:0451450523",
            "mailto:a@b.cd", "data:text/plain;base64,SGVsbG8="],
    "duration": ["P1D", "PT5M", "P1Y2M3DT4H5M6S", "P4W"],
}
BAD_FORMATS = {
    "date": ["2024-02-30", "2023-02-29", "1900-02-29", "2024-13-01", "24-01-01", "2024-04-31"],
    "time": ["24:00:00Z", "12:00:00", "12:60:00Z"],
    "date-time": ["2024-06-30", "2024-06-30T12:00:00", "2024-06-30 12:00:00Z"],
    "uuid": ["123e4567", "123e4567-e89b-12d3-a456-42661417400g"],
    "ipv4": ["256.1.1.1", "1.1.1", "01.1.1.1"],
    "ipv6": [":::", "1:2:3:4:5:6:7", "1::2::3", "12345::", "1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7:8::"],
    "email": ["a", "a@b", "@b.cd", "a..b@c.de"],
    "hostname": ["", "-a", "a-", "a--b", "a..b", "1.2", "a" * 64],
    "uri": ["a", "http://", "http:// x", "http://a:65536", "file://", "urn:", "http:a"],
    "duration": ["P", "PT", "P1Y1D", "1D"],
}


COMPARE = {"minimum": operator.ge, "maximum": operator.le, "exclusiveMinimum": operator.gt, "exclusiveMaximum": operator.lt,
           "multipleOf": lambda v, of: v % of == 0}
MULTIPLES = [0.01, 0.1, 0.5, 0.25, 1.5, 12.5, 0.003, 0.999, 1e-5, 1, 2.0, 3, 5, 7, 60, 1000]


def exact(bound):
    """As it stands in the schema."""
    return fractions.Fraction(json.dumps(bound))


class Walk:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, schema, n, judge=()):
        request = {"kind": "json_schema", "text": json.dumps(schema), "n": n, "seed": 11, "judge": list(judge)}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def spellings(v):
    return [json.dumps(v, ensure_ascii=False), json.dumps(v, separators=(",", ":"), ensure_ascii=False),
            json.dumps(v, indent=2, ensure_ascii=False), json.dumps(v, indent="\t", ensure_ascii=False)]


failures = 0


def fail(*what):
    global failures
    failures += 1
    print("FAILED:", *what, file=sys.stderr)


def check_walks(schema, walks):
    validator = jsonschema.Draft202012Validator(schema)
    for text in walks:
        try:
            validator.validate(json.loads(text))
        except RecursionError:
            return  # a reference to itself, which has no value here and no end there
        except (ValueError, jsonschema.ValidationError) as e:
            fail(json.dumps(schema), "lets through", repr(text), str(e).splitlines()[0])


def check_case(walk, schema, valid, invalid):
    reply = walk.ask(schema, WALKS)
    if "refused" in reply:
        fail(json.dumps(schema), "is refused:", reply["refused"])
        return
    check_walks(schema, reply["walks"])
    texts = [text for v in valid for text in spellings(v)]
    for v in valid:
        jsonschema.Draft202012Validator(schema).validate(v)
    for text, verdict in zip(texts, walk.ask(schema, 0, texts)["verdicts"]):
        if verdict != 2:
            fail(json.dumps(schema), "does not let through", repr(text))
    for text, verdict in zip(invalid, walk.ask(schema, 0, invalid)["verdicts"]):
        if verdict == 2:
            fail(json.dumps(schema), "lets through", repr(text))


def check_format_walks(name, walks):
    for text in walks:
        try:
            FORMATS[name](json.loads(text))
        except ValueError as e:
            fail(name, "lets through", repr(text), e)


def check_formats(walk):
    for name in FORMATS:
        schema = {"type": "string", "format": name}
        check_format_walks(name, walk.ask(schema, 200)["walks"])
        check_case(walk, schema, FORMAT_INSTANCES[name], [json.dumps(text) for text in BAD_FORMATS[name]])
        for low, high in ((0, 20), (10, 2083), (9, 36), (3, 100), (12, 300)):
            check_lengths(walk, name, low, high)


def check_lengths(walk, name, low, high):
    """Texts of the format that keep them come, all of the instances that are short, or none can keep them."""
    schema = {"type": "string", "format": name, "minLength": low, "maxLength": high}
    valid = [text for text in FORMAT_INSTANCES[name] if low <= len(text) <= min(high, 63)]
    reply = walk.ask(schema, 60)
    if "refused" in reply:
        if valid:
            fail(json.dumps(schema), "is refused:", reply["refused"])
        return
    check_format_walks(name, reply["walks"])
    check_case(walk, schema, valid, [json.dumps(text) for text in BAD_FORMATS[name]])


# ---- bounds

def near(r, bound):
    """Numbers around a bound, of up to five digits behind the point."""
    step = fractions.Fraction(1, 10 ** r.randint(0, 5))
    for k in (-11, -2, -1, 0, 1, 2, 11):
        yield fractions.Fraction(round(fractions.Fraction(bound) / step) + k) * step


def decimal(v):
    """Of a fraction of at most five digits."""
    text = f"{abs(v) // 1}.{abs(v) % 1 * 10**5 // 1:05d}".rstrip("0").rstrip(".")
    return "-" + text if v < 0 else text


def check_bounds(walk, n):
    r = random.Random(3)
    for _ in range(n):
        schema = random_number(r)
        bounds = {k: v for k, v in schema.items() if k != "type"}
        numbers = {v for bound in [0, *bounds.values()] for v in near(r, bound)}
        if r.random() < 0.5:
            schema["multipleOf"] = bounds["multipleOf"] = r.choice(MULTIPLES)
            of = exact(bounds["multipleOf"])
            numbers |= {(v // of + k) * of for v in list(numbers) for k in (0, 1)}
        numbers = [v for v in numbers if (v * 10**5).denominator == 1]
        others = r.sample(numbers, r.choice([0, 0, 1, 4]))
        if others:
            schema["not"] = {"enum": ["x", *(json.loads(decimal(v)) for v in others)]}
        texts = [decimal(v) for v in numbers]
        reply = walk.ask(schema, 3, texts)
        walks = [text for text in reply.get("walks", []) if "e" not in text and "E" not in text]
        numbers += map(fractions.Fraction, walks)
        texts += walks
        verdicts = reply.get("verdicts", [0] * (len(texts) - len(walks))) + [2] * len(walks)
        for v, text, verdict in zip(numbers, texts, verdicts):
            good = v not in others and all(COMPARE[k](v, exact(bound)) for k, bound in bounds.items())
            good = good and (schema["type"] == "number" or v.denominator == 1)
            if good != (verdict == 2):
                fail(json.dumps(schema), "lets through" if verdict == 2 else "does not let through", text)


# ---- unique items

def check_unique(walk):
    """Of a list of values, every order of any of them, and nothing else."""
    values = [1, 2, 1.5, "a", "ab", True, False, None]
    of_items = [{"enum": values[:4]}, {"enum": [1, 1.0, 2, True]}, {"type": "integer", "enum": [1.0, 2, "a"]}, {"const": "a"}, {"enum": []}, False,
                {"type": ["boolean", "null"]}, {"anyOf": [{"const": "a"}, {"type": "null"}, {"enum": ["ab", "a"]}]},
                {"allOf": [{"type": ["string", "null"]}, {"enum": values}]}, {"$ref": "#/$defs/x", "minimum": 2}]
    for items, low, high in itertools.product(of_items, (0, 2), (2, 3, None)):
        schema = {"type": "array", "items": items, "uniqueItems": True, "minItems": low, "$defs": {"x": {"oneOf": [{"const": "ab"}, {"type": "boolean"}]}}}
        if high is not None:
            schema["maxItems"] = high
        arrays = [a for n in range(5) for a in itertools.product(values if n < 3 else values[:5], repeat=n)]
        reply = walk.ask(schema, 5, map(json.dumps, arrays))
        if "refused" in reply:
            validator = jsonschema.Draft202012Validator(schema)
            if any(validator.is_valid(a) for a in map(list, arrays)):
                fail(json.dumps(schema), "is refused:", reply["refused"])
            continue
        check_walks(schema, reply["walks"])
        for a, verdict in zip(map(list, arrays), reply["verdicts"]):
            if jsonschema.Draft202012Validator(schema).is_valid(a) != (verdict == 2):
                fail(json.dumps(schema), "lets through" if verdict == 2 else "does not let through", a)


# ---- schemas at random

def number(r):
    return r.choice([r.randint(-120, 120), r.randint(-3, 3), round(r.uniform(-20, 20), r.randint(1, 3)), r.uniform(-1e-3, 1e-3), r.uniform(-1e9, 1e9)])


def random_number(r):
    s = {"type": r.choice(["number", "integer"])}
    low, high = sorted([number(r), number(r)])
    if r.random() < 0.6:
        s[r.choice(["minimum", "exclusiveMinimum"])] = low
    if r.random() < 0.6:
        s[r.choice(["maximum", "exclusiveMaximum"])] = high + 2
    return s


def random_string(r):
    if r.random() < 0.4:
        lengths = {k: v for k, v in (("minLength", r.randrange(4)), ("maxLength", r.randrange(3, 9))) if r.random() < 0.4}
        return {"type": "string", "pattern": r.choice(["^a+$", "[0-9]{2}", "^(foo|bar)", "x$", "^[^ab]*$", "^(a|bcd)*$", "\\\\|\"", "^.?é+"]), **lengths}
    s = {"type": "string"}
    if r.random() < 0.5:
        s["minLength"] = r.randint(0, 3)
    if r.random() < 0.5:
        s["maxLength"] = r.randint(3, 6)
    return s


NAMES = ["a", "b", "ab", "abc", "", "\u00e9", "x\"y", "a\\"]


def random_names(r):
    return r.choice([{"enum": [*r.sample(NAMES, 3), 1]}, {"const": "a"}, {"pattern": "^[ab]+$"}, {"maxLength": 2}, {"type": ["string", "null"]}, False, True,
                     {"type": "integer", "enum": ["a", "b"]}, {"enum": ["a"], "allOf": [False]},
                     {"anyOf": [{"const": "b"}, {"pattern": "x", "maxLength": 3}]}])


def random_object(r, depth):
    names = r.sample(NAMES, r.choice([0, r.randint(0, 4)]))
    s = {"type": "object"}
    if names or r.random() < 0.5:
        s["properties"] = {name: random_schema(r, depth - 1) for name in names}
    if r.random() < 0.6:
        s["required"] = r.sample(names, r.randint(0, len(names)))
    if r.random() < 0.5:
        s["additionalProperties"] = r.choice([True, False, {"type": "integer"}])
    if r.random() < 0.2:
        s["propertyNames"] = random_names(r)
    if r.random() < 0.2:
        patterns = r.sample(["^a", "b$", "x|\"", "[^b]"], r.choice([1, 1, 2, 3]))
        s["patternProperties"] = {pattern: random_schema(r, depth - 1) for pattern in patterns}
    if r.random() < 0.2:
        s["minProperties"], s["maxProperties"] = r.randint(0, 2), r.randint(1, 4)
    return s


def random_array(r, depth):
    s = {"type": "array"}
    if r.random() < 0.4:
        s["prefixItems"] = [random_schema(r, depth - 1) for _ in range(r.randint(1, 3))]
    if r.random() < 0.7:
        s["items"] = random_schema(r, depth - 1)
    if r.random() < 0.5:
        s["minItems"] = r.randint(0, 3)
    if r.random() < 0.5:
        s["maxItems"] = r.randint(3, 5)
    if r.random() < 0.3:
        s["uniqueItems"] = r.random() < 0.8
    return s


# whose opposites are kept
OPPOSED = [{"type": "object"}, {"type": ["string", "null"]}, {"const": "a"}, {"enum": ["a", "x", None]}, {"pattern": "b|c$"}, {"pattern": "^\\s"},
           {"minLength": 2}, {"maxLength": 1, "type": "string"}, {"minimum": 1}, {"exclusiveMaximum": 2.5}, {"minItems": 1}, {"required": ["a", "b"]},
           {"properties": {"a": {"const": "a"}}}, {"properties": {"b": {"minimum": 0}}, "required": ["b"]}, {"properties": {"ab": False}},
           {"not": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}}, {"anyOf": [{"type": "null"}, {"required": ["ab"]}]}, True]


def random_conditions(r, depth):
    s = random_schema_object(r, depth - 1)
    s.update(r.choice([
        {"not": r.choice(OPPOSED)},
        {"allOf": [{"not": schema} for schema in r.sample(OPPOSED, 2)]},
        {"if": r.choice(OPPOSED), r.choice(["then", "else"]): random_schema(r, depth - 1)},
        {"dependentRequired": {name: r.sample(["a", "b", "ab"], 1) for name in r.sample(["a", "b", "ab"], 2)}},
        {"dependentSchemas": {"a": r.choice(OPPOSED)}}]))
    return s


def random_schema(r, depth):
    kind = r.randint(0, 13 if depth > 0 else 4)
    if kind == 0:
        return random_number(r)
    if kind == 1:
        return random_string(r)
    if kind == 2:
        return {"enum": [r.choice([1, 2.5, "x", None, True, [1], {"a": 1}]) for _ in range(3)]}
    if kind == 3:
        return r.choice([True, {}, {"type": "boolean"}, {"type": ["null", "integer"]}])
    if kind == 4:
        return {"$ref": "#/$defs/" + r.choice("st")}
    if kind == 5:
        return {"anyOf": [random_schema(r, depth - 1) for _ in range(r.randint(1, 3))]}
    if kind == 6:
        return {"allOf": [random_schema(r, depth - 1) for _ in range(r.randint(1, 3))]}
    if kind == 7:
        return {**random_schema_object(r, depth - 1), "anyOf": [random_schema(r, depth - 1) for _ in range(2)]}
    if kind == 8:
        return {**random_object(r, depth - 1), "allOf": [random_object(r, depth - 1) for _ in range(2)]}
    if kind > 11:
        return random_conditions(r, depth)
    return random_object(r, depth) if kind < 11 else random_array(r, depth)


def random_schema_object(r, depth):
    s = random_schema(r, depth)
    return s if isinstance(s, dict) else {}


def random_value(r, depth):
    if depth == 0 or r.random() < 0.4:
        return r.choice([1, 7, -2.5, "a", "aa", "foo", "", False, None, [], {}])  # not True, which is 1 within a list of Python's
    if r.random() < 0.5:
        return [random_value(r, depth - 1) for _ in range(r.randint(0, 3))]
    return {name: random_value(r, depth - 1) for name in r.sample(NAMES, r.randint(0, 3))}


def check_listed(walk, n):
    """Of the values of an enum those come that are as the schema beside it says, and no others."""
    r = random.Random(7)
    n_valid = 0
    for _ in range(n):
        values = [random_value(r, 3) for _ in range(6)]
        beside = random_schema_object(r, 2)
        schema = {"enum": values, **(beside if "enum" not in beside else {"allOf": [beside]}),
                  "$defs": {"s": {"type": ["integer", "null"]}, "t": {"properties": {"a": {"type": "string"}}}}}
        reply = walk.ask(schema, 0, [json.dumps(v, ensure_ascii=False) for v in values])
        if "no text at all" not in reply.get("refused", "no text at all"):
            continue
        validator = jsonschema.Draft202012Validator(schema)
        for v, verdict in zip(values, reply.get("verdicts", [0] * len(values))):
            n_valid += verdict == 2
            if validator.is_valid(v) != (verdict == 2):
                fail(json.dumps(schema), "lets through" if verdict == 2 else "does not let through", json.dumps(v))
    if n_valid < n:
        fail("too few values of enum beside schemas at random")


def check_random(walk, n):
    r = random.Random(5)
    refusals, n_texts = {}, 0
    for _ in range(n):
        schema = random_schema_object(r, 3)
        schema["$defs"] = {"s": random_schema(r, 2), "t": random_object(r, 2)}
        reply = walk.ask(schema, 4)
        if "refused" in reply:
            why = reply["refused"].split(": ")[-1]
            refusals[why] = refusals.get(why, 0) + 1
            continue
        n_texts += len(reply["walks"])
        check_walks(schema, reply["walks"])
    print(f"{n} schemas at random, {n_texts} texts; refused:", refusals)
    if n_texts < n:
        fail("too few texts of schemas at random")


def main(program):
    walk = Walk(program)
    for case in CASES:
        check_case(walk, *case)
    check_formats(walk)
    check_bounds(walk, 1500)
    check_unique(walk)
    check_listed(walk, 1000)
    check_random(walk, 1500)
    walk.process.stdin.close()
    return 1 if failures != 0 or walk.process.wait() != 0 else 0


sys.exit(main(sys.argv[1]))
