# Every model against its golden outputs.
foreach(model demo v2-lite v2 v3-fp8 kimi-k2 k2-int4 moonlight glm-flash v3.2 glm-5 axk1 youtu mistral-4 mistral-large-3)
  bt_test(model.reference.${model} SOURCE test_goldens_reference.c ONE_THREAD ARGS ${model} LABELS cpu
          LIBS bt_model_reference PkgConfig::JANSSON)
endforeach()
foreach(model demo v2-lite v2 v3-fp8 kimi-k2 k2-int4 moonlight glm-flash v3.2 glm-5 axk1 youtu mistral-4 mistral-large-3)
  bt_test(model.engine.${model} SOURCE test_goldens_engine.c ARGS ${model} NP 1 LABELS cpu
          LIBS bt_model PkgConfig::JANSSON)
endforeach()
foreach(np 2 3 4)
  foreach(model demo v2-lite v2 v3-fp8 kimi-k2 k2-int4 moonlight glm-flash v3.2 glm-5 axk1 mistral-4)
    bt_test(model.group.${model}.np${np} SOURCE test_goldens_group.c ARGS ${model} NP ${np} LABELS cpu
            LIBS bt_model PkgConfig::JANSSON)
    if(NOT model STREQUAL demo) # the micro models' ranks wait for each other most of the time
      set_tests_properties(model.group.${model}.np${np} PROPERTIES PROCESSORS 2)
    endif()
  endforeach()
endforeach()
# What their layers for multi-token prediction draft.
foreach(model demo v3-fp8 v3.2)
  bt_test(model.mtp.${model} SOURCE test_mtp.c ARGS ${model} NP 1 LABELS cpu LIBS bt_model PkgConfig::JANSSON)
  bt_test(model.mtp.group.${model}.np3 SOURCE test_mtp_group.c ARGS ${model} NP 3 LABELS cpu LIBS bt_model PkgConfig::JANSSON)
endforeach()
# Of 4 bits, with the bits of bf16.
foreach(np 1 3)
  bt_test(model.int4.np${np} SOURCE test_int4.c NP ${np} LABELS cpu LIBS bt_model PkgConfig::JANSSON)
endforeach()
bt_test(model.store SOURCE test_store.c ONE_THREAD LABELS cpu LIBS bt_model)
bt_test(model.rows SOURCE test_rows.c EXE test_matrix_rows ONE_THREAD LABELS cpu LIBS bt_model)
bt_test(model.packed SOURCE test_packed.c ONE_THREAD LABELS cpu LIBS bt_model PkgConfig::XXHASH)
bt_test(model.weights SOURCE test_weights.c LABELS cpu LIBS bt_model bt_model_reference PkgConfig::JANSSON)
bt_test(model.weights_shared SOURCE test_weights_shared.c LABELS cpu LIBS bt_model bt_model_reference PkgConfig::JANSSON)
bt_test(model.weights_refused SOURCE test_weights_refused.c LABELS cpu LIBS bt_model PkgConfig::JANSSON)
bt_test(model.model SOURCE test_model.c NP 1 LABELS cpu LIBS bt_model PkgConfig::JANSSON)
if(TARGET bt_emulated)
  foreach(model v2-lite v3-fp8 k2-int4)
    bt_test(model.engine.${model}.emulated SOURCE test_goldens_engine.c EXE test_goldens_engine_emulated ARGS ${model} NP 1 LABELS cpu
            LIBS bt_emulated bt_model PkgConfig::JANSSON)
  endforeach()
  bt_test(model.int4.emulated SOURCE test_int4.c EXE test_int4_emulated NP 1 LABELS cpu LIBS bt_emulated bt_model PkgConfig::JANSSON)
endif()
